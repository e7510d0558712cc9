"""The loop by itself: what every system's lines are counted against."""

from __future__ import annotations

from gruppetto.experiments.peers.course import Course

__all__ = ["main"]


def main(course: Course) -> None:
    net = course.model()
    optimizer = course.adamw(net.parameters())
    for windows in course.batches(optimizer):
        course.backward(net, windows)
        optimizer.step()
        optimizer.zero_grad()
    course.finish(net)


if __name__ == "__main__":
    main(Course.of_arguments())
