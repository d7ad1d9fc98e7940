"""The programs in `scripts/` that `make` runs."""

import shutil
import stat
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
STEPS = ["ruff", "basedpyright", "lint-imports", "coverage", "pytest"]


def programs_in(folder: Path, *names: str, status: int) -> None:
    """Write programs that note their name and end with a status."""
    folder.mkdir(parents=True)
    for name in names:
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "{name}" >> "$RAN"\nexit {status}\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)


def run_test_script(folder: Path, *, status: int) -> tuple[int, str, list[str]]:
    """Run `scripts/test` with programs that all end alike; return its status, its output and what it ran."""
    programs_in(folder / "scripts", "install-test-packages", status=status)
    programs_in(folder / "venv" / "bin", *STEPS, "python", "uv", status=status)
    script = shutil.copy(ROOT / "scripts" / "test", folder / "scripts" / "test")
    ran = folder / "ran"
    environment = {"PATH": "/usr/bin:/bin", "VENV": str(folder / "venv"), "RAN": str(ran), "PYENV_ROOT": str(folder)}
    done = subprocess.run([script], env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - our own script
    return done.returncode, done.stdout, ran.read_text().split()


def test_a_failed_step_hides_no_later_step_and_fails_the_whole(tmp_path: Path) -> None:
    status, output, ran = run_test_script(tmp_path, status=1)

    assert status == 1
    assert set(STEPS) <= set(ran), ran
    assert "failed: lint" in output
    assert "failed: promises, with more examples" in output


def test_a_run_without_failed_steps_passes(tmp_path: Path) -> None:
    status, output, _ = run_test_script(tmp_path, status=0)

    assert status == 0
    assert "failed:" not in output
