"""The whole house on one machine: embedded servers and their supervisor."""
