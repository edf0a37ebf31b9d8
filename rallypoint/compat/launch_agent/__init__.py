"""`launch_agent`: an elastic group of workers from inside a program, with the call of torch's launcher and of llutil's."""
