"""Why Google Cloud Storage refused, in words for people: what is wrong and what to do about it."""

import json


class GcsFailure(Exception):
    """A request that can't succeed. `cause` says what is wrong, `remedy` what to do; the store makes the sentence."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(cause)
        self.cause, self.remedy = cause, remedy


LOG_IN = "run `gcloud auth application-default login`, or let GOOGLE_APPLICATION_CREDENTIALS name a key file"


def message(body: bytes) -> str:
    """The first line of an error's message, as the JSON API gives it."""
    try:
        text = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        text = body.decode("utf-8", errors="replace")
    return (text.strip().splitlines() or [""])[0][:160].rstrip(".")


def names_no_bucket(body: bytes) -> bool:
    """Whether a 404 means that the bucket is missing, not just the object."""
    return "bucket does not exist" in message(body)


def refusal(status: int, body: bytes, bucket: str) -> GcsFailure:
    """What an answer with an error status means."""
    said = message(body)
    if status == 404:
        return GcsFailure(f"there is no bucket {bucket}", f"make it with `gcloud storage buckets create gs://{bucket}`")
    if status == 401:
        return GcsFailure(f"the credentials were not accepted ({said or status})", LOG_IN)
    if status == 403:
        return GcsFailure(
            f"permission was denied ({said or status})", f"give this account the role Storage Object User on {bucket}"
        )
    return GcsFailure(f"Google Cloud Storage answered {status} ({said})", "look at the bucket's settings")


def no_credentials(error: Exception) -> GcsFailure:
    """google-auth found no credentials, or can't renew them."""
    said = (str(error).strip().splitlines() or [type(error).__name__])[0][:160].rstrip(".")
    return GcsFailure(f"there are no usable Google credentials ({said})", LOG_IN)


def no_answer(seconds: float, last: str) -> GcsFailure:
    """Every attempt within the deadline failed."""
    return GcsFailure(
        f"no request succeeded for {seconds:g} s (the last one: {last})", "wait until it is reachable from here"
    )
