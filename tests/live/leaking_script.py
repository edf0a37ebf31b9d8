"""A training whose error quotes the password that it was given, as clients of databases do."""

import os

print("connecting to", os.environ["URL"], flush=True)
raise ConnectionError(f"cannot log in with {os.environ['WAREHOUSE']}")
