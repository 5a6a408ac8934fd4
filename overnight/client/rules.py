"""Operations on improvement rules: `client.rules`."""

import builtins
from typing import Unpack

from overnight.client.calls import Call, path, read, read_list, send
from overnight.client.operations import D, Group, operation
from overnight.models.field_errors import validate
from overnight.models.rules import (
    ImprovementRule,
    RuleCreate,
    RuleFields,
    RuleFigure,
    RuleRemoved,
)


class Rules(Group[D]):
    """Rules that file a task when figures of your own runs are bad."""

    @operation
    def list(self) -> Call[builtins.list[ImprovementRule]]:
        """Return your improvement rules by name."""
        return read_list(ImprovementRule, path("rules"))

    @operation
    def create(
        self, name: str, *, figure: str, above: float, **fields: Unpack[RuleFields]
    ) -> Call[ImprovementRule]:
        """Add an improvement rule."""
        given = {**fields, "name": name, "figure": figure, "above": above}
        return send(ImprovementRule, "POST", path("rules"), validate(RuleCreate, given))

    @operation
    def get(self, rule_id: str) -> Call[ImprovementRule]:
        """Return one improvement rule."""
        return read(ImprovementRule, path("rules", rule_id))

    @operation
    def figures(self, rule_id: str) -> Call[builtins.list[RuleFigure]]:
        """Return what a rule measures now, the highest value first; nothing is filed."""
        return read_list(RuleFigure, path("rules", rule_id, "figures"))

    @operation
    def remove(self, rule_id: str) -> Call[RuleRemoved]:
        """Remove an improvement rule; tasks that it has filed stay."""
        return send(RuleRemoved, "DELETE", path("rules", rule_id))
