"""The tests of the SDKs run in environments of their own, which `test_sdks.py` makes, and not in ours."""

collect_ignore = ["sdks"]
