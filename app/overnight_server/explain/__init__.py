"""Why a task is not running: the gate's conditions, each judged by itself."""
