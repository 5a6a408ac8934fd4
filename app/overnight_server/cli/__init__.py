"""The command `overnight`: it reads arguments, calls the API and prints the results."""
