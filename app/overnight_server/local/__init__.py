"""The whole deployment on one machine: embedded servers and their supervisor."""
