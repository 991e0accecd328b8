"""The copy itself: staging streams, what a task does, bringing it into the target, proving it. Who calls it when is left to workflows."""
