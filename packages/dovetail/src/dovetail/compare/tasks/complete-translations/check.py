"""Check the three files of translations."""

import json
import sys
from pathlib import Path

EXPECTED = {
    "en": {
        "menu": {"open": "Open", "save": "Save", "quit": "Quit"},
        "error": {"missing": "File {name} is missing", "busy": "Busy"},
        "count": "{n} files",
    },
    "de": {
        "menu": {"open": "Öffnen", "save": "Speichern", "quit": "Beenden"},
        "error": {"missing": "Die Datei {name} fehlt", "busy": "Beschäftigt"},
        "count": "{n} Dateien",
    },
    "fr": {
        "menu": {"open": "Ouvrir", "save": "Enregistrer", "quit": "Quitter"},
        "error": {"missing": "Le fichier {name} manque", "busy": "Occupé"},
        "count": "{n} fichiers",
    },
}


def find_problem() -> str | None:
    for language, expected in EXPECTED.items():
        found = json.loads(Path(f"locales/{language}.json").read_text("utf-8"))
        if found != expected:
            return f"{language}.json contains {found}, expected {expected}"
    return None


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
