"""What the house can be told, read once from the environment and refused if wrong."""

from app.settings.loading import current, load
from app.settings.model import SettingRow, Settings
from app.settings.problems import Problem, SettingsError

__all__ = ["Problem", "SettingRow", "Settings", "SettingsError", "current", "load"]
