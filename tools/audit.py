"""Look for known weaknesses in the versions that constraints.txt names.

python tools/audit.py     exits with 1 if there are any; says so, and exits with 0, where nobody can be asked

It is pip-audit that asks (pip install pip-audit), and pip-audit asks a service on the network.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

PINS = Path(__file__).resolve().parent.parent / "constraints.txt"
PATIENCE_S = 120.0


def main() -> int:
    if importlib.util.find_spec("pip_audit") is None:
        print("no audit of the dependencies: pip-audit is not installed here")
        return 0
    command = [sys.executable, "-m", "pip_audit", "-r", str(PINS), "--no-deps", "--disable-pip", "-f", "json"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        found = [each for each in json.loads(ran.stdout)["dependencies"] if each.get("vulns")]
    except (subprocess.TimeoutExpired, ValueError, KeyError) as wrong:
        print(f"no audit of the dependencies: its service gave no answer ({type(wrong).__name__})")
        return 0
    for each in found:
        for known in each["vulns"]:
            fixed = ", ".join(known.get("fix_versions", [])) or "no version yet"
            print(f"{each['name']} {each['version']}: {known['id']}, mended in {fixed}")
    print(f"{len(found)} dependencies with known weaknesses")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
