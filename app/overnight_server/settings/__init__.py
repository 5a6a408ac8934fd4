"""What the deployment can be told, read once from the environment and refused if wrong."""

from overnight_server.settings.load_settings import current, load
from overnight_server.settings.model import SettingRow, Settings
from overnight_server.settings.problems import Problem, SettingsError

__all__ = ["Problem", "SettingRow", "Settings", "SettingsError", "current", "load"]
