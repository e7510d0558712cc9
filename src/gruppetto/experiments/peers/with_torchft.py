"""The loop with torchft's streaming DiLoCo over gloo, found by TORCHFT_LIGHTHOUSE; its outer optimizer as ours."""

from __future__ import annotations

from gruppetto.experiments.peers.course import Course

__all__ = ["main"]


def main(course: Course) -> None:
    from datetime import timedelta

    import torch
    from torch import nn
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torchft import Manager, ProcessGroupGloo
    from torchft.local_sgd import DiLoCo

    net = course.model()
    optimizer = course.adamw(net.parameters())
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=lambda state: (net.load_state_dict(state["net"]), optimizer.load_state_dict(state["inner"])),
        state_dict=lambda: {"net": net.state_dict(), "inner": optimizer.state_dict()},
        min_replica_size=1,
        use_async_quorum=False,
        timeout=timedelta(seconds=10),
        quorum_timeout=timedelta(seconds=60),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=f"w{course.worker}",
        hostname="127.0.0.1",
    )
    inner = net.model
    parts = [nn.ModuleList([inner.embed_tokens, inner.layers[0]]), nn.ModuleList([*inner.layers[1:], inner.norm])]
    outer = [torch.optim.SGD(part.parameters(), lr=0.7, momentum=0.5, nesterov=True) for part in parts]
    every = course.setting.sync_every
    steps_a_part = every // len(parts)
    with DiLoCo(manager, parts, optimizer, outer, sync_every=every, pin_memory=False, fragment_sync_delay=2):
        for windows in course.batches(optimizer, lambda: manager.current_step() * steps_a_part):
            course.backward(net, windows)
            optimizer.step()
            optimizer.zero_grad()
    course.finish(net)


if __name__ == "__main__":
    main(Course.of_arguments())
