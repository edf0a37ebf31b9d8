"""Classes of a job whose errors quote a secret of its environment."""

import os


class PreCheck:
    """A pre-check operator."""

    def check(self, job_args):
        """Fail."""
        raise ConnectionError(f"cannot log in with {os.environ['WAREHOUSE']}")

    @classmethod
    def get_retry_times(cls):
        """Return how often a failed check is repeated."""
        return 1

    def failed_actions(self, result_msg, abnormal_nodes):
        """Return the actions after a failed check."""
        return ["job_abortion"]


class CutCheck(PreCheck):
    """A pre-check operator whose error is cut before the last character of the secret."""

    def check(self, job_args):
        """Fail with 2,000 characters and one more."""
        before, secret = "check raised ConnectionError: ", os.environ["WAREHOUSE"]
        raise ConnectionError("x" * (2001 - len(before) - len(secret)) + secret)


class Extension:
    """A failover extension."""

    def decide(self, failure):
        """Fail."""
        raise ConnectionError(f"no login: {os.environ['WAREHOUSE']}")
