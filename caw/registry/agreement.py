"""The watermark of a server: one that reads all texts of its registry's keys."""

from caw.registry.opening import Registry
from caw.watermarks import Signature
from caw.watermarks.names import reads_alike, watermark_from


def watermark_for(found: Registry, mark: Signature, *, asked: bool) -> tuple[Signature, list[str]]:
    """Return the watermark of a server of this registry, and what to tell its operator.

    asked: whether the operator asked for `mark`; otherwise it is used only where no key marks now.

    Raises ValueError if a key that marks now has another watermark: its texts would not be detected.
    """
    now = found.database.clock()
    keys = [(each, each.state(now), watermark_from(each.watermark, mark.secret)) for each in found.marking.every()]
    valid, remarks = [own for _, state, own in keys if state == "valid"], list[str]()
    if not asked and valid:
        mark = valid[0]
    for each, state, own in keys:
        unlike = not reads_alike(mark, own) or (not asked and mark != own)
        if state == "valid" and unlike:
            raise ValueError(
                f"one server marks with one watermark, got {mark} and key {each.id} of {each.tenant} with {own}; if "
                "they differ only in strength, give --watermark with its options, otherwise run a server with its "
                "own registry"
            )
        if state == "waiting" and unlike:
            remarks.append(
                f"key {each.id} of {each.tenant} will mark with {own} from {each.not_before}; restart the server then"
            )
    return mark, remarks
