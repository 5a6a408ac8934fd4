"""The settings: read once per process from the environment and files, refused if wrong."""

from overnight_server.settings.load_settings import current, load
from overnight_server.settings.model import SettingRow, Settings
from overnight_server.settings.problems import SettingProblem, SettingsError

__all__ = ["SettingProblem", "SettingRow", "Settings", "SettingsError", "current", "load"]
