"""What an engine that is installed looks like: which of its functions are run, and on what stand-ins."""
