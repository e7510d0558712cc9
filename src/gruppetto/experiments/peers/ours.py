"""The loop as a learner. The syncer's state directory, ``syncer`` below the place, says where it listens."""

from __future__ import annotations

from gruppetto.experiments.peers.course import Course

__all__ = ["main"]


def main(course: Course) -> None:
    import gruppetto

    net = course.model()
    optimizer = course.adamw(net.parameters())
    syncer, name = str(course.place / "syncer"), f"w{course.worker}"
    with gruppetto.Learner(net, optimizer, syncer=syncer, name=name, tokens_per_step=course.tokens_per_step) as learner:
        for windows in course.batches(optimizer, lambda: learner.round):
            course.backward(net, windows)
            optimizer.step()
            optimizer.zero_grad()
    course.finish(net)


if __name__ == "__main__":
    main(Course.of_arguments())
