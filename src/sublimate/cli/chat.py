"""`sublimate chat`: a conversation in the terminal, with a running server or one started for it.

defines: chat, own_server, Conversation
"""

from __future__ import annotations

import http.client
import os
import secrets
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from ..bench.apis import MESSAGES, headers, read_event
from ..config import Effective, cache_folder, data_folder
from ..errors import ConfigError, EngineError, ExitCode, ModelError, PeerError
from .output import complain, error_text, errors, out
from .peer import OK_STATUS, Peer, configured_peer, not_ready

ANSWER_SECONDS = 600.0
STOP_SECONDS = 5.0
KEY_BYTES = 16
QUOTES = '"""'
HISTORY_LINES_MAX = 1000
HELP = "/help lists commands, Ctrl-D ends, Ctrl-C stops an answer."
COMMANDS = {
    "/new": "start over",
    "/retry": "answer the last message again",
    "/system TEXT": "set the system prompt; without a text, show it",
    "/help": "show this list",
    "/exit": "end, as Ctrl-D does",
    QUOTES: "begin and end a message of several lines",
}


def chat(
    effective: Effective,
    *,
    config: Path | None,
    url: str | None,
    cacert: Path | None,
    system: str,
    max_tokens: int,
    temperature: float,
    prompt: str = "",
) -> ExitCode:
    """Answer the prompt, or talk until the end of the input. config: the file that was named, for
    a server of our own. cacert: trusted too, for https. Raises PeerError, ModelError,
    EngineError."""
    from ..model.files import locate
    from .models import pull

    settings = effective.settings
    default = f"http://{settings.server.host}:{settings.server.port}"
    options = {"max_tokens": max_tokens, "temperature": temperature, "system": system}
    history = data_folder(settings.edge) / "chat-history"
    peer = configured_peer(effective, url or "", cacert)
    is_ready = peer.ready()
    if url is not None and not is_ready:
        peer.ask("/livez")  # raises the error that says why, if there was no answer
        raise not_ready(url)
    if is_ready:
        called = _called(effective, peer)
        if called is not None:
            named = Conversation(peer, {**options, "model": called})
            return _converse(named, prompt, history)
        if url is not None:
            raise PeerError(f"{url} does not serve {settings.model!r}: {url}/v1/models lists all.")
        why = f"{default} does not serve {settings.model}"
    else:
        why = f"Nothing serves at {default}"
    errors.print(f"{why}; starting a server for this chat ...", markup=False, soft_wrap=True)
    if not settings.engine.script and locate(settings.model, cache_folder(settings)) is None:
        pull(effective, settings.model)  # here and not by the server, whose screen nobody sees
    own_key = secrets.token_hex(KEY_BYTES)
    with own_server(effective, config, own_key) as own:
        return _converse(Conversation(Peer(own, own_key), options), prompt, history)


def _called(effective: Effective, peer: Peer) -> str | None:
    """What the server calls the model of the command line: as that does, or as its file is named.
    None: it has no such model; "default" if none was asked for."""
    from ..model.files import locate

    wanted = effective.settings.model
    if not effective.origins["model"].startswith("flag"):
        return "default"
    names = [wanted]
    with suppress(ModelError):
        if (file := locate(wanted, cache_folder(effective.settings))) is not None:
            names.append(file.name)
    # What it answers otherwise (a key is wanted, it has gone) it says to the first message, too.
    return next((name for name in names if not _is_unknown(peer, name)), None)


def _is_unknown(peer: Peer, model: str) -> bool:
    with suppress(PeerError):
        return peer.ask(f"/v1/models/{quote(model, safe='')}")[0] == http.client.NOT_FOUND
    return False


class _Line(msgspec.Struct):
    """What is used of a JSON line of `serve --log-format json`."""

    event: str = ""
    url: str = ""
    message: str = ""


@contextmanager
def own_server(effective: Effective, config: Path | None, key: str) -> Generator[str]:
    """A server on a free port that ends with this command. Raises EngineError.

    It reads the same file and environment as this command, but is for it alone: at loopback
    and with a key of its own, and what the file may say about other clients does not hold.
    """
    engine = effective.settings.engine
    command = [sys.executable, "-m", "sublimate", "serve", "--port", "0", "--log-format", "json"]
    command += ["--log-level", "error", "--host", "127.0.0.1", "--no-stay"]
    command += ["--profile-contract", "default", "--model", effective.settings.model]
    command += ["--exact" if engine.exact else "--no-exact"]
    command += ["--context-length", str(engine.context_length)]
    if engine.rope_scaling:
        command += ["--rope-scaling", engine.rope_scaling]
    if engine.script:
        command += ["--script", engine.script]
    if config is not None:
        command += ["--config", str(config)]
    with subprocess.Popen(  # noqa: S603 - our own interpreter and module
        command,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        process_group=0,
        # Not as a flag, which every user of the machine could read.
        env={**os.environ, "SUBLIMATE_API_KEYS": key},
    ) as server:
        try:
            yield _ready_url(server)
        finally:
            server.terminate()
            try:
                server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()


def _ready_url(server: subprocess.Popen[bytes]) -> str:
    if server.stdout is not None:
        for data in server.stdout:
            line = msgspec.json.decode(data, type=_Line)
            if line.event == "ready":
                return line.url
            if line.event == "unavailable":
                raise EngineError(line.message)
    raise EngineError("The server for this command did not start.")


class Conversation:
    """A conversation with one server. `ask` prints each answer as it comes."""

    def __init__(self, peer: Peer, options: dict[str, Any]) -> None:
        """options: further members of the request. An empty system prompt is left out."""
        self.url = peer.url
        self.system = str(options.get("system", ""))
        self.messages: list[dict[str, str]] = []
        self._options = {name: v for name, v in options.items() if name != "system"}
        self._peer = peer

    def ask(self, text: str) -> None:
        """A further turn. Raises PeerError, after which the turn is forgotten."""
        self.messages.append({"role": "user", "content": text})
        try:
            answer = self._answer()
        except BaseException:
            self.messages.pop()
            raise
        if answer:
            self.messages.append({"role": "assistant", "content": answer})
        else:
            self.messages.pop()

    def retry(self) -> bool:
        """Answer the last turn again. False if there is no turn. Raises PeerError. Without
        a new answer the earlier one stays."""
        if len(self.messages) < 2:
            return False
        before = self.messages[:]
        del self.messages[-2:]
        try:
            self.ask(before[-2]["content"])
        finally:
            if len(self.messages) < len(before):
                self.messages[:] = before
        return True

    def _answer(self) -> str:
        """What the model wrote until the end or Ctrl-C."""
        written: list[str] = []
        try:
            with closing(self._pieces()) as pieces:
                for piece in pieces:
                    out.file.write(piece)
                    out.file.flush()
                    written.append(piece)
        except KeyboardInterrupt:
            out.file.write(" ...")  # shown to the user; not part of the answer
        finally:
            if written:
                out.print()
        return "".join(written)

    def _pieces(self) -> Generator[str]:
        """Yield the text of the answer as it arrives. Raises PeerError."""
        body: dict[str, Any] = {"model": "default", "stream": True, **self._options}
        body["messages"] = self.messages
        if self.system:
            body["system"] = self.system
        path = urlsplit(self.url).path.rstrip("/").removesuffix("/v1") + MESSAGES.path
        sent = headers(self._peer.key, self._peer.profile)
        with closing(self._peer.connection(ANSWER_SECONDS)) as connection:
            try:
                connection.request("POST", path, msgspec.json.encode(body), sent)
                response = connection.getresponse()
                if response.status != OK_STATUS:
                    raise PeerError(f"{response.status} {error_text(response.read())}")
                for line in response:
                    if not line.startswith(b"data:"):
                        continue
                    delta = read_event(line[len(b"data:") :].strip())
                    if delta.error:
                        raise PeerError(delta.error)
                    yield delta.text
                    if delta.finished:
                        return
            except (OSError, http.client.HTTPException) as error:
                raise PeerError(f"The connection ended: {type(error).__name__}.") from error


def _converse(conversation: Conversation, prompt: str, history: Path) -> ExitCode:
    """One answer to the prompt or to what is piped in, and nothing else on standard output; at a
    terminal without a prompt, answers until the end of the input. Raises PeerError."""
    if prompt or not sys.stdin.isatty():
        piped = (
            "" if sys.stdin.isatty() else sys.stdin.buffer.read().decode(errors="replace").strip()
        )
        given = os.fsencode(prompt).decode(errors="replace")  # bytes that are no UTF-8
        text = "\n\n".join(filter(None, (given, piped)))
        if not text:
            raise ConfigError("There is nothing to say: standard input is empty.")
        conversation.ask(text)
        return ExitCode.OK
    out.print(f"Talking to {conversation.url}. {HELP}")
    with _line_editor(history):
        while (text := _typed()) is not None:
            try:
                if text.startswith("/"):
                    if not _obey(conversation, text):
                        break
                elif text:
                    conversation.ask(text)
            except PeerError as error:
                complain(str(error))
    return ExitCode.OK


def _typed() -> str | None:
    """A line, or what stands between two lines with three quotation marks; None: the end."""
    try:
        text = input("> ").strip()
        if not text.startswith(QUOTES):
            return text
        lines = [text.removeprefix(QUOTES)]
        while not lines[-1].rstrip().endswith(QUOTES):
            lines.append(input("... "))
        lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
        return "\n".join(lines).strip()
    except (EOFError, KeyboardInterrupt):
        out.print()
        return None


def _obey(conversation: Conversation, text: str) -> bool:
    """A command. False: it ends the conversation. Raises PeerError."""
    command, _, rest = text.partition(" ")
    if command in ("/exit", "/quit", "/bye"):
        return False
    if command in ("/new", "/clear"):
        conversation.messages.clear()
    elif command == "/system":
        if rest.strip():
            conversation.system = rest.strip()
        out.print(conversation.system or "There is no system prompt.", markup=False)
    elif command == "/retry":
        if not conversation.retry():
            out.print("There is no answer yet.")
    else:
        if command != "/help":
            out.print(f"There is no command {command}.", markup=False)
        for name, does in COMMANDS.items():
            out.print(f"{name:16} {does}", markup=False)
    return True


@contextmanager
def _line_editor(history: Path) -> Generator[None]:
    """Editing of the line, earlier lines and completion of commands, where Python has readline.
    Lines are kept in a file that this user alone can read, if one can be written."""
    try:
        import readline
    except ImportError:
        yield
        return
    names = [name.partition(" ")[0] for name in COMMANDS]

    def complete(text: str, number: int) -> str | None:
        return [*(name for name in names if name.startswith(text)), None][number]

    readline.set_completer_delims(" ")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
    readline.set_history_length(HISTORY_LINES_MAX)
    with suppress(OSError):
        readline.read_history_file(history)
    try:
        yield
    finally:
        readline.set_completer(None)
        with suppress(OSError):
            history.parent.mkdir(parents=True, exist_ok=True)
            history.touch(mode=0o600)
            readline.write_history_file(history)
