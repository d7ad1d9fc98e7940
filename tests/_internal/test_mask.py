"""What is recognised as a secret, and what must stay readable."""

from table_tests import every_row

from callyard._internal.mask import MASK, is_secret_name, mask_arguments, mask_text, mask_url, mask_values, secrets_in

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc_-"


@every_row(
    ("text", "shown"),
    [
        ("token=abc", "token=***"),
        ("API_KEY: abc, next", "API_KEY: ***, next"),
        ("Authorization: Bearer abc def", "Authorization: ***"),
        ("Cookie: a=b; c=d", "Cookie: ***"),
        ('{"password": "correct horse", "a": 1}', '{"password": "***", "a": 1}'),
        (r"{\"password\": \"x y\", 1}", r"{\"password\": \"***\", 1}"),
        (r'{"password": "x\"y", "a": 1}', '{"password": "***", "a": 1}'),
        ("{'client_secret': 'x y'}", "{'client_secret': '***'}"),
        ("GET https://ada:pw@h/x?token=abc&b=1", "GET https://***@h/x?token=***&b=1"),
        ("url=https://h/?api_key=abc", "url=https://h/?api_key=***"),
        ("Invalid key sk-ant-api03-abcdef12 x", "Invalid key *** x"),
        ("ghp_abcdefghijklmnop", MASK),
        (f"x={JWT}", "x=***"),
        ("sent Bearer abcdefgh", "sent Bearer ***"),
        ("Basic YWRhOnB3", "Basic ***"),
        ("AbCdEf0123456789AbCdEf0123456789xy", MASK),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY----- x", "*** x"),
    ],
)
def test_secrets_are_masked_by_name_and_by_form(text: str, shown: str) -> None:
    assert mask_text(text) == shown


@every_row(
    "text",
    [
        "ModuleNotFoundError: No module named 'tokens'",
        "call tool=add code=ok ms=0 depth=0 id=c_1",
        "author=Ada authors: 3 max_tokens=100 key=3",
        "commit 0123456789abcdef0123456789abcdef01234567",
        "id 123e4567-e89b-12d3-a456-426614174000",
        "/usr/lib/python3.11/site-packages/Foo1bar.py",
        "upstream name=git pin=block pat=Ada key=prod/customers.db",
        "serving address=http://127.0.0.1:8321/mcp",
        "Basic usage: see the token page",
        "",
    ],
)
def test_words_ids_paths_and_addresses_stay_readable(text: str) -> None:
    assert mask_text(text) == text


def test_known_values_are_masked_wherever_they_are_the_longest_first() -> None:
    assert mask_text("a hunter2-more b hunter2 c abc", ["hunter2", "hunter2-more", "abc"]) == "a *** b *** c abc"


def test_the_secrets_among_variables_are_those_of_telling_names_and_all_that_may_be_one() -> None:
    variables = {
        "API_TOKEN": "word",
        "PLAIN": "a1b2c3d4",
        "DATABASE": "postgres://ada:pw123@db/x",
        "Authorization": "Bearer abc123",
        "NODE_ENV": "production",
        "HOME": "/home/ada/1",
        "URL": "https://example.org/a1",
        "PORT": "80808080",
        "PIN": "123",
    }

    assert secrets_in(variables) == {
        "word",
        "a1b2c3d4",
        "postgres://ada:pw123@db/x",
        "pw123",
        "Bearer abc123",
        "abc123",
    }


def test_arguments_are_masked_after_a_telling_flag_in_assignments_and_by_form() -> None:
    arguments = [
        "-y",
        "--api-key",
        "abc",
        "--token=abc",
        "TOKEN=abc",
        "--verbose",
        "x",
        "--secret",
        "--other",
        "sk-abc12345678",
    ]

    shown = mask_arguments(arguments)

    assert shown == ["-y", "--api-key", MASK, "--token=***", "TOKEN=***", "--verbose", "x", "--secret", "--other", MASK]


def test_values_are_masked_by_the_names_of_their_fields_and_by_form() -> None:
    value = {
        "user": "ada",
        "auth": {"a": 1},
        "list": [{"pin": 1234}, "token=abc"],
        "author": "Eve",
        "password": "",
        "deep": [[[[[[["x"]]]]]]],
    }

    shown = {"user": "ada", "auth": MASK, "list": [{"pin": MASK}, "token=***"], "author": "Eve", "password": ""}
    assert mask_values(value) == {**shown, "deep": [[[[[[["x"]]]]]]]}


@every_row("value", ["prod/customers.db", "block", "A", 12, ["a"], {"a": "b"}, None])
@every_row("name", ["key", "Key", "pin", "pat"])
def test_a_common_word_is_no_secret_unless_its_value_looks_like_one(name: str, value: object) -> None:
    assert mask_values({name: value}) == {name: value}


@every_row(
    ("name", "value"),
    [
        ("key", "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY/1"),
        ("key", "0123456789abcdef0123"),
        ("key", "sk-abc12345678"),
        ("pin", "0815"),
        ("pat", "ghp_abcdefgh1234"),
    ],
)
def test_a_common_word_with_a_secret_is_masked(name: str, value: str) -> None:
    assert mask_values({name: value, "x": f"{name}={value}"}) == {name: MASK, "x": f"{name}=***"}


def test_a_list_of_keys_is_masked_if_one_of_them_is_a_secret() -> None:
    assert mask_values({"key": ["abcdefghij0123456789xyz"]}) == {"key": MASK}


def test_endless_lists_are_cut() -> None:
    value: list[object] = []
    for _ in range(300):
        value = [value]

    assert str(mask_values(value)).count("[") < 110


def test_the_path_of_a_url_may_be_a_secret_too() -> None:
    assert (
        mask_url("https://ada:pw@hooks.example.com/services/T/B/X?a=1", keeps_path=False)
        == "https://hooks.example.com/***"
    )
    assert mask_url("https://hooks.example.com/", keeps_path=False) == "https://hooks.example.com"
    assert mask_url("https://ada:pw@h/mcp?token=x") == "https://***@h/mcp?token=***"
    assert mask_url("no url", keeps_path=False) == "no url"


@every_row(
    "name", ["token", "apiKey", "X-Api-Key", "client_secret", "PGPASSWORD", "passphrase", "authorization", "pin"]
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@every_row("name", ["author", "authors", "tokens", "max_tokens", "monkey", "keyboard", "path", "opinion"])
def test_names_that_only_sound_like_secrets(name: str) -> None:
    assert not is_secret_name(name)
