"""The loop with hivemind's optimizer: local updates, and averages of parameters whenever all have made their part.

Its epochs follow the samples of all, so the end goes by the worker's own steps. Its defaults are meant for rounds of
minutes: here a request must time out before matchmaking does, progress be told more than once a round, and averaging be
over before the next one, which in the background it is not.
"""

from __future__ import annotations

from gruppetto.experiments.peers.course import Course

__all__ = ["main"]


def main(course: Course) -> None:
    import hivemind

    net = course.model()
    setting = course.setting
    peers = [file.read_text() for file in sorted(course.place.glob("*.peer"))]
    dht = hivemind.DHT(host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=peers, start=True)
    (course.place / f"{course.worker}.peer").write_text(str(dht.get_visible_maddrs()[0]))
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="run",
        batch_size_per_step=setting.batch,
        target_batch_size=setting.batch * setting.sync_every * setting.workers,
        params=net.parameters(),
        optimizer=course.adamw,
        use_local_updates=True,
        matchmaking_time=1.0,
        averaging_timeout=10.0,
        averager_opts={
            "request_timeout": 0.5,
            "target_group_size": setting.workers,
            "min_group_size": 2,
            "initial_group_bits": "",
        },
        tracker_opts={"min_refresh_period": 0.1, "default_refresh_period": 0.2},
        delay_state_averaging=False,
        verbose=False,
    )
    for windows in course.batches(optimizer):
        course.backward(net, windows)
        optimizer.step()
        optimizer.zero_grad()
    course.finish(net)


if __name__ == "__main__":
    main(Course.of_arguments())
