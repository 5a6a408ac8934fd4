"""Models of a task's history, of a night, and of the morning report."""

from datetime import date as calendar_date
from datetime import datetime
from typing import Any

from pydantic import Field

from overnight.models.base import ResponseModel


class SegmentHolder(ResponseModel):
    """Who or what a task waited for, or the worker that ran it."""

    kind: str = Field(description="What it is: task, user, pool or worker.")
    id: str = Field(description="The task's id, the worker's id or the name.")
    title: str | None = Field(None, description="The task's title.")


class LifeSegment(ResponseModel):
    """A part of a task's life with one cause."""

    kind: str = Field(
        description="What happened to the task: waiting, claimed, running, checking or ended"
        " (between its end and a later retry)."
    )
    code: str = Field(
        description="The narrowest reason why it waited, with the codes of explain; state if it"
        " did not wait."
    )
    since: datetime = Field(description="When the segment begins: the end of the one before.")
    until: datetime = Field(description="When it ends.")
    seconds: float = Field(description="How long it is.")
    is_open: bool = Field(default=False, description="Whether it continues now.")
    text: str = Field(description="The cause as a sentence.")
    holder: SegmentHolder | None = Field(None, description="Who held the task, or ran it.")
    clears_at: datetime | None = Field(
        None, description="When the cause of an open segment ends by itself, if that is known."
    )
    act: str | None = Field(
        None, description="The command that ends the cause of an open segment, if there is one."
    )
    epoch: int | None = Field(None, description="The run, counted in claims; null while waiting.")
    outcome: str | None = Field(None, description="How the run ended.")
    also: list[str] = Field(
        default_factory=list, description="The codes of wider reasons that held as well."
    )
    details: dict[str, Any] = Field(default_factory=dict, description="The values behind it.")


class CauseTotal(ResponseModel):
    """How much of a time one cause took."""

    kind: str = Field(description="The kind of the segments: waiting, running and so on.")
    code: str = Field(description="The cause.")
    label: str = Field(description="The cause in a few words.")
    seconds: float = Field(description="How long it took in all.")
    share: float = Field(description="The part of the whole, from 0 to 1.")


class TaskLife(ResponseModel):
    """A task's life, from its creation to its end or to now, without gap or overlap."""

    id: str = Field(description="The task's id.")
    title: str = Field(description="The title.")
    state: str = Field(description="The state.")
    created_at: datetime = Field(description="When the task was created.")
    until: datetime = Field(description="When it ended, or now.")
    is_over: bool = Field(description="Whether the task has ended.")
    segments: list[LifeSegment] = Field(description="The parts of its life in order.")
    by_cause: list[CauseTotal] = Field(description="The same by cause, the longest first.")
    made_at: datetime = Field(description="When this was determined.")


class SlotPiece(ResponseModel):
    """A part of a slot's night: a run, or idle time with its cause."""

    since: datetime = Field(description="When it begins.")
    until: datetime = Field(description="When it ends.")
    seconds: float = Field(description="How long it is.")
    is_idle: bool = Field(description="Whether the slot was empty.")
    code: str = Field(
        description="The outcome of the run, or running; if the slot was empty, the cause: a"
        " reason code of explain, nothing_queued or unknown."
    )
    text: str = Field(description="What it was, in a few words.")
    task_id: str | None = Field(None, description="The task that ran.")
    title: str | None = Field(None, description="Its title.")
    epoch: int | None = Field(None, description="Its run.")


class NightSlot(ResponseModel):
    """One of the slots of the plan in a night."""

    number: int = Field(description="The number of the slot, from 1.")
    pieces: list[SlotPiece] = Field(
        description="Runs and idle times in order; they fill the times in which the plan had this"
        " slot and the window was open."
    )


class NightMarker(ResponseModel):
    """Something that happened to the deployment in a night."""

    at: datetime = Field(description="When.")
    kind: str = Field(description="What: worker_lost, paused or resumed.")
    text: str = Field(description="What happened, as a sentence.")


class WaitingCount(ResponseModel):
    """How many tasks waited at a moment, by cause."""

    at: datetime = Field(description="The moment.")
    by_code: dict[str, int] = Field(description="The number of tasks for each reason code.")


class NightTally(ResponseModel):
    """The tasks of a night by what became of them."""

    total: int = Field(description="All tasks that were open in the night.")
    done: int = Field(description="Completed in the night.")
    running: int = Field(description="Running at its end, or now.")
    waiting: int = Field(description="Waiting at its end, or now.")
    dead: int = Field(description="Failed for good in the night.")
    cancelled: int = Field(description="Cancelled in the night.")


class UserNight(ResponseModel):
    """One night of a user: what each slot of the plan did in each minute."""

    date: calendar_date = Field(description="The local date on which the night begins.")
    zone: str = Field(description="The time zone of the user's window, or UTC.")
    opens_at: datetime = Field(description="When the night window opens.")
    closes_at: datetime = Field(description="When it closes.")
    until: datetime = Field(description="The end of the window, or now.")
    is_over: bool = Field(description="Whether the window has closed.")
    next_opens_at: datetime = Field(description="When the next night begins.")
    has_window: bool = Field(description="Whether the user has a window; else a night is a day.")
    tally: NightTally = Field(description="The tasks by what became of them.")
    slots: list[NightSlot] = Field(description="The slots of the plan.")
    plan_seconds: float = Field(description="Slots of the plan times the open window.")
    work_seconds: float = Field(description="The part of it in which runs held a slot.")
    idle_seconds: float = Field(description="The part in which slots were empty.")
    beyond_plan_seconds: float = Field(
        description="Runs beyond the plan's slots, after the plan was lowered."
    )
    idle_by_cause: list[CauseTotal] = Field(description="The idle time by cause.")
    waiting: list[WaitingCount] = Field(
        description="How many tasks waited at evenly spaced moments, by cause."
    )
    markers: list[NightMarker] = Field(description="What happened to the deployment.")
    is_partial: bool = Field(
        default=False, description="Whether there were more runs or tasks than were read."
    )
    made_at: datetime = Field(description="When this was determined.")

    @property
    def is_past(self) -> bool:
        """Whether a later night has begun: what is open now says nothing about this one."""
        return self.made_at >= self.next_opens_at


class ReportAct(ResponseModel):
    """The one act that answers a need."""

    label: str = Field(description="A verb and a number, such as Retry 2 tasks.")
    command: str = Field(description="The command that does it.")
    path: str = Field(description="The page of the dashboard on which to do it.")
    form_path: str | None = Field(
        None, description="Where a page of the dashboard posts it; null: only the page can do it."
    )
    form_fields: dict[str, str] = Field(
        default_factory=dict, description="The fields of that form."
    )


class ReportNeed(ResponseModel):
    """Something that needs a person."""

    kind: str = Field(description="What it is: dead, budget, hours or worker.")
    title: str = Field(description="What happened.")
    detail: str = Field(description="The facts behind it.")
    if_ignored: str = Field(description="What happens if the person does nothing.")
    act: ReportAct = Field(description="What to do.")
    task_ids: list[str] = Field(default_factory=list, description="The tasks concerned.")


class ReportTask(ResponseModel):
    """One task in the report."""

    id: str = Field(description="The task's id.")
    title: str = Field(description="The title.")
    state: str = Field(description="The state.")
    text: str = Field(description="What it produced, why it failed, or what it waits for.")
    work_seconds: float = Field(description="How long its runs in the night took.")
    cost_usd: float = Field(description="What it has cost.")
    finished_at: datetime | None = Field(None, description="When it ended.")


class ReportGroup(ResponseModel):
    """The results of one graph, or of all tasks without a graph."""

    dag_id: str | None = Field(description="The graph; null for single tasks.")
    title: str = Field(description="Its title.")
    done: int = Field(description="Tasks completed in the night.")
    total: int = Field(description="Its tasks that were open in the night.")
    cost_usd: float = Field(description="What these tasks have cost.")
    tasks: list[ReportTask] = Field(description="Those that ended, in the order of their end.")


class PostponedTask(ResponseModel):
    """A task that was left for later."""

    id: str = Field(description="The task's id.")
    title: str = Field(description="The title.")
    state: str = Field(description="The state.")
    code: str = Field(description="The narrowest reason why it waits.")
    text: str = Field(description="The reason as a sentence.")
    clears_at: datetime | None = Field(None, description="When the reason ends by itself.")


class ReportFigures(ResponseModel):
    """Hours and money of a night against the plan."""

    work_seconds: float = Field(description="How long runs held slots, retries included.")
    night_cost_usd: float = Field(description="What the runs of the night have cost.")
    night_budget_usd: float | None = Field(description="The budget of a night; null: no limit.")
    month_used_seconds: float = Field(description="Hours of the billing month that are used.")
    month_limit_seconds: float | None = Field(description="Hours of the plan; null: no limit.")
    month_resets_at: datetime = Field(description="When the billing month ends.")
    max_concurrent: int = Field(description="The slots of the plan.")


class NightReport(ResponseModel):
    """The morning report: one model for the page, the mail, the terminal and JSON."""

    headline: str = Field(description="What happened, in one sentence.")
    mood: str = Field(description="good, mixed, bad, quiet or open, for the colour of the page.")
    summary: str = Field(description="Work, money and hours in one sentence.")
    night: UserNight = Field(description="The night itself.")
    figures: ReportFigures = Field(description="Hours and money.")
    needs: list[ReportNeed] = Field(
        description="What needs a person now, the most urgent first; empty for past nights."
    )
    needs_more: int = Field(0, description="How many needs are not listed.")
    groups: list[ReportGroup] = Field(description="Results by graph.")
    groups_more: int = Field(0, description="How many ended tasks are not listed.")
    postponed: list[PostponedTask] = Field(description="What is still open, and why.")
    postponed_more: int = Field(0, description="How many open tasks are not listed.")
    made_at: datetime = Field(description="When the report was made.")
