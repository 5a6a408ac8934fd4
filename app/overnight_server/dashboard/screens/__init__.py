"""The screens of the dashboard: one module each, with a `screen`; every module here is served."""
