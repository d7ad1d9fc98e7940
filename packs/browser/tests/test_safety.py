import json
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from page_server import Browser, Site, failure, needs_chromium, open_browser, ref_in

pytestmark = needs_chromium

TYPED = "Hunter2-s&cret <x>"
OUT = "127.0.0.2:PORT"
WAYS_OUT = {
    "fetch": "fetch('http://OUT/')",
    "a request without CORS": "fetch('http://OUT/', {mode: 'no-cors'})",
    "XMLHttpRequest": "const r = new XMLHttpRequest(); r.open('GET', 'http://OUT/'); r.send()",
    "an image": "new Image().src = 'http://OUT/i.png'",
    "a beacon": "navigator.sendBeacon('http://OUT/')",
    "an event stream": "new EventSource('http://OUT/')",
    "a WebSocket": "new WebSocket('ws://OUT/')",
    "a WebSocket with TLS": "new WebSocket('wss://OUT/')",
    "a module": "import('http://OUT/m.js')",
    "a worker's request": "new Worker(URL.createObjectURL(new Blob([`fetch('http://OUT/')`])))",
    "a worker's WebSocket": "new Worker(URL.createObjectURL(new Blob([`new WebSocket('ws://OUT/')`])))",
    "a worker's script": "new Worker(URL.createObjectURL(new Blob([`importScripts('http://OUT/')`])))",
    "WebRTC by UDP": "ice('stun:OUT')",
    "WebRTC by TCP": "ice('turn:OUT?transport=tcp')",
    "WebTransport": "new WebTransport('https://OUT/').ready.catch(() => 0)",
    "a window": "window.open('http://OUT/')",
    "a form": "document.body.innerHTML = `<form method=post action='http://OUT/'></form>`; document.forms[0].submit()",
    "a location": "location.href = 'http://OUT/'",
    "a decimal address": "fetch('http://2130706434:PORT/')",
    "a mapped address": "fetch('http://[::ffff:127.0.0.2]:PORT/')",
    "a script": "<script src='http://OUT/s.js'></script>",
    "a style": "<link rel=stylesheet href='http://OUT/s.css'>",
    "an imported style": "<style>@import url('http://OUT/s.css')</style>",
    "a background": "<body style=\"background: url('http://OUT/b.png')\">",
    "a font": "<style>@font-face {font-family: x; src: url('http://OUT/f')} p {font-family: x}</style><p>x",
    "a frame": "<iframe src='http://OUT/'></iframe>",
    "an object": "<object data='http://OUT/o'></object>",
    "an embedded thing": "<embed src='http://OUT/e'>",
    "a video": "<video src='http://OUT/v' autoplay></video>",
    "a prefetch": "<link rel=prefetch href='http://OUT/p'>",
    "a preload": "<link rel=preload as=image href='http://OUT/p'>",
    "a preconnect": "<link rel=preconnect href='http://OUT/'>",
    "an icon": "<link rel=icon href='http://OUT/favicon.ico'>",
    "a refresh": "<meta http-equiv=refresh content=\"0; url='http://OUT/'\">",
    "a redirect": "<iframe src='/away'></iframe><img src='/away'>",
    "a frame in a frame": "<iframe srcdoc=\"<img src='http://OUT/i.png'>\"></iframe>",
    "a picture in SVG": "<svg><image href='http://OUT/i.png'/></svg>",
    "speculation": '<script type=speculationrules>{"prefetch": [{"urls": ["http://OUT/"], "eagerness": "immediate"}]}'
    "</script>",
}
ICE = """function ice(urls) {
  const peer = new RTCPeerConnection({iceServers: [{urls, username: 'u', credential: 'c'}]});
  peer.createDataChannel('x'); peer.createOffer().then(offer => peer.setLocalDescription(offer)); }"""
WAYS_TO_TELL = {
    "its own value": "",
    "another type": "field.type = 'text'",
    "a text": "document.querySelector('p').textContent = field.value",
    "a text in two parts": "document.querySelector('p').innerHTML = '<b></b>!'; "
    "document.querySelector('b').textContent = field.value",
    "a name": "document.querySelector('button').setAttribute('aria-label', field.value)",
    "another field": "document.querySelector('textarea').value = field.value",
    "a placeholder": "document.querySelector('textarea').placeholder = field.value",
    "the title": "document.title = field.value",
    "the address": "history.pushState(0, '', '/?q=' + encodeURIComponent(field.value))",
    "the hash": "location.hash = field.value",
    "the console": "console.log(field.value)",
    "an error on the console": "console.error({password: field.value})",
    "an exception": "setTimeout(() => { throw new Error(field.value) })",
    "a query": "fetch('/echo?q=' + encodeURIComponent(field.value))",
    "a body": "fetch('/echo', {method: 'POST', body: new URLSearchParams({password: field.value})})",
    "a body of JSON": "fetch('/echo', {method: 'POST', body: JSON.stringify({password: field.value})})",
    "a header": "fetch('/echo', {headers: {'X-Password': encodeURI(field.value)}})",
    "a refused request": "fetch('http://127.0.0.2/?' + encodeURIComponent(field.value))",
    "a shadow": "document.querySelector('p').attachShadow({mode: 'open'}).innerHTML = '<i></i>'; "
    "document.querySelector('p').shadowRoot.querySelector('i').textContent = field.value",
    "a frame": "document.body.append(Object.assign(document.createElement('iframe'), {srcdoc: '<p></p>', "
    "onload() { this.contentDocument.querySelector('p').textContent = field.value }}))",
    "a short life": "const gone = document.createElement('input'); gone.type = 'password'; gone.value = 'Other-pw-77';"
    "document.body.append(gone); gone.remove(); document.querySelector('p').textContent = gone.value",
}


@contextmanager
def watch_outside() -> Generator[tuple[int, list[str]]]:
    """Listen where no page may connect to, by TCP and UDP; the list has what came."""
    came: list[str] = []
    with socket.create_server(("127.0.0.2", 0)) as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        port = tcp.getsockname()[1]
        udp.bind(("127.0.0.2", port))
        stop = threading.Event()

        def watch(listener: socket.socket) -> None:
            listener.settimeout(0.05)
            while not stop.is_set():
                try:
                    if listener is tcp:
                        listener.accept()[0].close()
                        came.append("TCP")
                    else:
                        listener.recvfrom(2000)
                        came.append("UDP")
                except TimeoutError:
                    continue

        threads = [threading.Thread(target=watch, args=(listener,)) for listener in (tcp, udp)]
        for thread in threads:
            thread.start()
        try:
            yield port, came
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def page_of(way: str, port: int) -> str:
    snippet = way.replace("OUT", OUT).replace("PORT", str(port))
    return snippet if snippet.startswith("<") else f"<body><script>{ICE}\n{snippet}</script>"


async def test_no_page_reaches_a_host_that_is_not_allowed(site: Site, tmp_path: Path) -> None:
    reached: dict[str, list[str]] = {}
    with watch_outside() as (port, came):
        site.put("/away", b"", status=302, Location=f"http://127.0.0.2:{port}/")
        async with open_browser(tmp_path) as browser:
            await browser.launch(site.page("start"))
            for name, way in WAYS_OUT.items():
                await browser.try_to("navigate", to=site.page(page_of(way, port), "/way"))
                await browser.try_to("find", text="x")
                if came:
                    reached[name] = list(came)
                    came.clear()
            refused = [
                await browser.try_to("navigate", to=to)
                for to in (f"http://127.0.0.2:{port}/", "file:///etc/passwd", "chrome://version", "javascript:1", "x:y")
            ]
            await browser.do("stop")
        assert reached == {}
        assert came == []
        assert {failure(answer) for answer in refused} == {("permission_denied", "host_not_allowed")}

        async with open_browser(tmp_path, hosts=["127.0.0.1", "127.0.0.2"]) as browser:
            await browser.launch(site.page(page_of(WAYS_OUT["fetch"], port), "/way"))
            await browser.do("network", match="127.0.0.2", failed=True, timeout_s=30)
        assert came  # where it is allowed, the page does reach it


async def read_everything(browser: Browser) -> str:
    """Return all that an agent can read of the page, as one text."""
    answers = [
        await browser.try_to(tool, **arguments)
        for tool, arguments in (
            *(("snapshot", {}), ("find", {"limit": 100}), ("read_text", {}), ("status", {}), ("console", {})),
            *(("network", {}), ("expect_text", {"equals": "nothing", "timeout_s": 0})),
            *(("expect_url", {"contains": "nothing", "timeout_s": 0}), ("snapshot", {"since": "s1"})),
        )
    ]
    requests = [item["id"] for item in answers[5].data["requests"][-4:]]
    fields = [ref_in(line) for line in answers[1].data["found"] if "textbox" in line]
    answers.extend([await browser.try_to("network", request=number) for number in requests])
    answers.extend([await browser.try_to("get_state", ref=ref) for ref in fields])
    return json.dumps([answer.data if answer.success else vars_of(answer.error) for answer in answers])


def vars_of(error: object) -> str:
    return repr([getattr(error, name) for name in ("code", "message", "details", "hint")])


async def test_no_answer_has_the_value_of_a_password_field(site: Site, tmp_path: Path) -> None:
    shown_values: list[str] = []
    site.put("/echo", TYPED.encode())
    written = [TYPED, "Other-pw-77", json.dumps(TYPED)[1:-1], "Hunter2-s%26cret", "Hunter2-s&amp;cret"]
    async with open_browser(tmp_path) as browser:
        await browser.launch(site.page("start"))
        for name, way in WAYS_TO_TELL.items():
            url = site.page(
                "<label>Password <input type=password></label><p>none</p><textarea></textarea>"
                f'<button onclick="run()">Go</button><script>function run() {{ const field = '
                f"document.querySelector('input');\n{way} }}</script>",
                "/way",
            )
            await browser.do("navigate", to=url)
            filled = await browser.do("fill", ref=await browser.ref("Password", "textbox"), text=TYPED)
            clicked = await browser.do("click", ref=await browser.ref("Go", "button"))
            seen = json.dumps([filled, clicked]) + await read_everything(browser)
            if any(text in seen for text in written):
                shown_values.append(name)
    assert shown_values == []


async def test_a_password_that_is_in_the_page_or_typed_by_keys_is_masked_too(site: Site, tmp_path: Path) -> None:
    site.put("/echo", b"")
    url = site.page(
        "<input type=password aria-label=First value=Abc-12345><form action=/echo>"
        "<input type=password name=pw aria-label=Second></form>"
    )
    async with open_browser(tmp_path) as browser:
        launched = await browser.launch(url)
        second = await browser.ref("Second")
        await browser.do("type", text="Typed-67890", ref=second)
        pressed = await browser.do("press", keys=["Enter"])
        seen = json.dumps([launched, pressed]) + await read_everything(browser)

    assert 'textbox "First" [' in launched["page"]
    assert "Abc-12345" not in seen
    assert "Typed-67890" not in seen


async def test_a_secret_is_typed_at_its_hosts_only_and_shown_nowhere(site: Site, tmp_path: Path) -> None:
    url = site.page('<input aria-label=Key oninput="document.title = this.value"><p>text</p>')
    settings: dict[str, Any] = {
        "secrets": {"key": "top-secret-99", "other": "never-typed"},
        "secret_hosts": {"key": ["127.0.0.1"]},
    }
    async with open_browser(tmp_path, **settings) as browser:
        await browser.launch(url)
        ref = await browser.ref("Key")
        filled = await browser.do("fill", ref=ref, secret="key")  # noqa: S106 - its name
        refused = await browser.try_to("fill", ref=ref, secret="other")  # noqa: S106 - its name
        unknown = await browser.try_to("fill", ref=ref, secret="none")  # noqa: S106 - its name
        state = await browser.do("get_state", ref=ref)
        seen = json.dumps([filled, state]) + await read_everything(browser)

    assert state["value"] == "***"
    assert "top-secret-99" not in seen
    assert failure(refused) == failure(unknown) == ("permission_denied", "secret_not_allowed")


async def test_requests_are_shown_without_credentials(site: Site, tmp_path: Path) -> None:
    site.put("/data", b'{"ok": true}', Set_Cookie="sid=abc123; Path=/")
    url = site.page(
        "<script>document.cookie = 'own=cookie42';"
        "fetch('/data', {headers: {Authorization: 'Bearer token-4242', 'X-Own': 'shown'}})</script>"
    )
    async with open_browser(tmp_path) as browser:
        await browser.launch(url)
        found = await browser.do("network", match="/data", timeout_s=30)
        details = await browser.do("network", request=found["requests"][0]["id"])

    text = json.dumps(details)
    assert details["headers"]["x-own"] == "shown"
    assert details["response"]["body"] == '{"ok": true}'
    assert [word for word in ("token-4242", "abc123", "cookie42") if word in text] == []


async def test_without_hosts_private_addresses_are_refused_and_named_ones_allowed(site: Site, tmp_path: Path) -> None:
    url = site.page("<p>inside</p>")
    async with open_browser(tmp_path, hosts=[]) as browser:
        answers = [
            await browser.try_to("launch", url=to)
            for to in (url, "http://localhost/", "http://10.0.0.1/", "http://[::1]/", "http://2130706433/", "http://[/")
        ]
    async with open_browser(tmp_path, hosts=["*", "127.0.0.1", "file:"]) as browser:
        await browser.launch(url)
        page = await browser.do("navigate", to=Path(__file__).as_uri())

    assert {failure(answer) for answer in answers} == {("permission_denied", "host_not_allowed")}
    assert "page" in page


async def test_a_page_reaches_no_private_address_that_is_not_named(site: Site, tmp_path: Path) -> None:
    inside = (
        "http://127.0.0.2:PORT/",
        "http://localhost:PORT/",
        "http://[::1]:PORT/",
        "http://[::ffff:127.0.0.2]:PORT/",
    )
    with watch_outside() as (port, came):
        fetches = "".join(f"fetch('{address}', {{mode: 'no-cors'}});" for address in inside).replace("PORT", str(port))
        url = site.page(f"<script>{fetches}</script>")
        async with open_browser(tmp_path, hosts=["*", "127.0.0.1"]) as browser:
            await browser.launch(url)
            failed = await browser.do("network", match=str(port), failed=True, timeout_s=30)
            while failed["count"] < len(inside):
                failed = await browser.do("network", match=str(port), failed=True)

    assert came == []
    assert {item["failed"] for item in failed["requests"]} == {"ERR_NAME_NOT_RESOLVED"}
