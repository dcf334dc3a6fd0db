"""Forty labelled sums, whose numbers are key: what evaluators are trained on in tests."""

import json
from pathlib import Path


def write_sums(folder: Path, name: str = "toy") -> Path:
    rows, labels = [], []
    for i in range(40):
        answer = f"so {i} and <<1+1=2>>{i + 1} is small\n#### {2 * i + 1}"
        plain = answer.replace("<<1+1=2>>", "")
        first, last = plain.index(str(i)), plain.index("####") + 5
        rows.append({"question": f"{i} plus {i + 1}?", "answer": answer})
        spans = [[first, first + len(str(i))], [last, len(plain)]]
        labels.append({"dataset": name, "split": "train", "index": i, "spans": spans})
    (folder / name).mkdir()
    for path, lines in ((folder / name / "train.jsonl", rows), (folder / f"{name}.jsonl", labels)):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / f"{name}.jsonl"
