"""``python -m tests.contract`` writes the files of ``contract/`` again.

If the contract has changed, the command also prints the entry that CHANGELOG.md needs.
"""

from tests.contract.golden import CONTRACT, digest, files, recorded

before = digest()
for path in CONTRACT.iterdir():
    path.unlink()
for name, content in files().items():
    (CONTRACT / name).write_text(content)
if recorded() != digest():
    print(  # noqa: T201 - the output of a command
        f"The digest of the contract was {before}, and is {digest()} now. Say in CHANGELOG.md, under Unreleased, what "
        f"changed for consumers:\n- **Contract `{digest()}`**: ..."
    )
