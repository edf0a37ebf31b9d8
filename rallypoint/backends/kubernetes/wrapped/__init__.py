"""Jobs whose pods another controller makes: AppWrappers, which also retry by themselves, and PyTorchJobs, which we reset."""
