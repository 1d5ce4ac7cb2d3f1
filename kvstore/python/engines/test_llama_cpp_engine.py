"""The prompt cache in llama-cpp-python: each life of the engine is a process of its own."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

from llama_cpp_engine import ANSWER_TOKENS, prompt, write_model  # noqa: E402
from served import Server, wait  # noqa: E402

HERE = Path(__file__).parent


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the file of a model."""
    path = tmp_path / "tiny.gguf"
    write_model(path, seed=1)
    return path


@contextlib.contextmanager
def running(
    model: Path, place: Path | str, kill: bool = False, **settings: object
) -> Iterator[Callable[[list[int]], dict[str, Any]]]:
    """Run the engine; give what has it complete a prompt, and returns what it says of it."""
    command = [sys.executable, "llama_cpp_engine.py", str(model), str(place), json.dumps(settings)]
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, cwd=HERE, stdin=pipe, stdout=pipe, text=True)
    stdin, stdout = child.stdin, child.stdout
    assert stdin is not None and stdout is not None

    def ask(tokens: list[int]) -> dict[str, Any]:
        print(json.dumps(tokens), file=stdin, flush=True)
        said: dict[str, Any] = json.loads(stdout.readline())
        return said

    with child, stdin, stdout:
        yield ask
        if kill:
            child.send_signal(signal.SIGKILL)
    assert child.returncode == (-signal.SIGKILL if kill else 0)


def live(
    model: Path, place: Path | str, *prompts: list[int], kill: bool = False, **settings: object
) -> list[dict[str, Any]]:
    """Start the engine, have it complete prompts, and end it; return what it said of each."""
    with running(model, place, kill, **settings) as ask:
        return [ask(tokens) for tokens in prompts]


def computed(answer: dict[str, Any]) -> int:
    """Return how many tokens of a prompt were computed."""
    # All of the answer but its last token is computed, or all of it, by how its text ends.
    assert ANSWER_TOKENS - 1 <= len(answer["answer"]) <= ANSWER_TOKENS
    return int(answer["computed"]) - len(answer["answer"])


@pytest.mark.parametrize("length", [9, 17, 49, 300])
@pytest.mark.parametrize("logits_all", [False, True])
def test_a_prompt_is_restored_after_a_restart(
    model: Path, tmp_path: Path, length: int, logits_all: bool
) -> None:
    image, asked = tmp_path / "kv.img", prompt(length)
    (fresh,) = live(model, "", asked, logits_all=logits_all)
    assert computed(fresh) == length
    (first,) = live(model, image, asked, logits_all=logits_all)
    assert first == fresh
    (again,) = live(model, image, asked, logits_all=logits_all)
    print(f"{length} tokens: {first['computed']} computed, after the restart {again['computed']}")
    assert again["answer"] == fresh["answer"]
    assert computed(again) == 1, "the last token, for its logits"


def test_a_prompt_goes_on_from_its_longest_known_beginning(model: Path, tmp_path: Path) -> None:
    image, asked = tmp_path / "kv.img", prompt(300)
    live(model, image, asked[:70], asked[:200] + prompt(50, 1), prompt(300, 2))
    (answer,) = live(model, image, asked)
    assert answer["answer"] == live(model, "", asked)[0]["answer"]
    assert computed(answer) == 100
    turn = asked + answer["answer"] + prompt(40, 3)
    (next_turn,) = live(model, image, turn)
    assert next_turn["answer"] == live(model, "", turn)[0]["answer"]
    assert computed(next_turn) == 40


def test_another_model_or_setting_computes_its_prompts(model: Path, tmp_path: Path) -> None:
    image, asked = tmp_path / "kv.img", prompt(100)
    (first,) = live(model, image, asked)
    for settings in (
        {"n_ctx": 512},
        {"rope_freq_base": 5000.0},
        {"type_k": 8},
        {"logits_all": True},
    ):
        (other,) = live(model, image, asked, **settings)
        assert computed(other) == 100, settings
        assert other == live(model, "", asked, **settings)[0]
    size = model.stat().st_size
    write_model(model, seed=2)
    assert model.stat().st_size == size
    (other,) = live(model, image, asked)
    assert computed(other) == 100 and other["answer"] != first["answer"]
    write_model(model, seed=1)
    (again,) = live(model, image, asked, n_threads=2)
    assert again["answer"] == first["answer"] and computed(again) == 1


def test_a_corrupt_prompt_is_computed_anew(model: Path, tmp_path: Path) -> None:
    image, asked = tmp_path / "kv.img", prompt(300)
    (first,) = live(model, image, asked)
    damage(image, asked)
    (again,) = live(model, image, asked)
    assert again == first, "computed, to the same tokens"
    (kept,) = live(model, image, asked)
    assert computed(kept) == 1, "and kept anew"


def damage(image: Path, tokens: list[int]) -> None:
    """Flip a bit of llama.cpp's part of the only state in a store."""
    whole = image.read_bytes()
    ids = b"".join(token.to_bytes(4, "little") for token in tokens)
    at = whole.find(ids)
    assert at > 0 and whole.find(ids, at + 1) < 0
    # Behind the tokens of the whole context.
    with image.open("r+b") as file:
        file.seek(at + 100_000)
        file.write(bytes([whole[at + 100_000] ^ 4]))


def test_a_killed_engine_restores_or_computes(model: Path, tmp_path: Path) -> None:
    image = tmp_path / "kv.img"
    asked = [prompt(100 + seed, seed) for seed in range(6)]
    first = live(model, image, *asked, kill=True)
    again = live(model, image, *asked)
    restored = [computed(one) == 1 for one in again]
    print(f"restored after a kill: {sum(restored)} of {len(asked)}")
    assert [one["answer"] for one in again] == [one["answer"] for one in first]
    assert any(restored)


def test_prompts_are_restored_after_each_of_ten_kills_of_the_server(
    model: Path, tmp_path: Path
) -> None:
    server, lives = Server(tmp_path), 10
    prompts = [prompt(100 + 20 * seed, seed) for seed in range(lives + 1)]
    fresh = [live(model, "", tokens)[0] for tokens in prompts]
    with running(model, server.target) as complete:

        def is_restored(number: int) -> bool:
            # The model itself remembers the prompt before.
            complete(prompt(20, 1000))
            answer, whole = complete(prompts[number]), fresh[number]
            assert answer["answer"] == whole["answer"]
            saved = whole["computed"] - answer["computed"]
            assert saved in (0, len(prompts[number]) - 1), "all of it is computed, or the last token"
            return saved > 0

        assert not is_restored(0) and is_restored(0)
        server.commit()
        seconds = []
        for life in range(1, lives + 1):
            server.kill()
            # What is computed meanwhile is not kept.
            assert not any(is_restored(number) for number in (0, life, 0, life))
            server.start()
            seconds.append(wait(lambda: is_restored(0)))
            assert not is_restored(life) and is_restored(life)
            server.commit()
        assert all(is_restored(number) for number in range(lives + 1))
    print(f"llama-cpp-python: {lives} kills, back after {max(seconds):.2f} s at most")
    server.close()
