"""Where Gangline answers the session otherwise than `mlflow server`, and why. Every other answer has to be the same."""

DIFFERENCES = {
    "rename deleted": "MLflow answers 500, which its clients send again for two minutes; ours is 400 INVALID_STATE",
    "search models foo = 1": "MLflow answers 500 to an unknown attribute; ours is 400 INVALID_PARAMETER_VALUE",
    "list deep": "MLflow leaves out the size of an empty file; ours is 0",
}
