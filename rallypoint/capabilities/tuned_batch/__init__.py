"""The tuned batch: the workers' batch grows to what their memory holds, as it is measured."""
