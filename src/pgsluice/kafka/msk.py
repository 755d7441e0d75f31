"""Tokens for Amazon MSK with IAM, which librdkafka gets from a callback.

Only pipelines with ``kafka.aws_msk_region`` import the signer, which is in the extra ``aws``.

https://github.com/aws/aws-msk-iam-sasl-signer-python
"""

from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError

from pgsluice.errors import ConfigError

_NO_CREDENTIALS: Final = "no credentials of AWS were found"


def token_callback(region: str, report: Callable[[KafkaError], None]) -> Callable[[str], tuple[str, float]]:
    """Return the ``oauth_cb`` of clients. It returns a token for ``region``, and the Unix time at which it expires.

    If there is no token, the callback tells ``report`` the reason, because librdkafka only reports that the callback
    has failed. Raise ConfigError if the signer is not installed.
    """
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # noqa: PLC0415 - boto3 takes 30 MB
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"kafka.aws_msk_region needs Python's module {error.name}: pip install 'pgsluice[aws]'."
        ) from None

    def token(_config: str) -> tuple[str, float]:
        try:
            signed, expiry_ms = MSKAuthTokenProvider.generate_auth_token(region)
        except Exception as error:
            is_without = isinstance(error, AttributeError)  # the signer takes credentials for granted
            words = f"Failed to acquire SASL OAUTHBEARER token: {_NO_CREDENTIALS if is_without else error}"
            report(KafkaError(KafkaError._AUTHENTICATION, words))  # noqa: SLF001 - librdkafka's name
            raise
        return signed, expiry_ms / 1000

    return token
