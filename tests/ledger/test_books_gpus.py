"""Which GPU a rank had, and the energy of GPUs, from hand-made samples."""

from __future__ import annotations

import json
import math

import duckdb
import pytest

from badput.schema import TABLES
from badput_ledger.energy import KWH, gpu_energy, total_energy
from badput_ledger.processes import read_processes
from badput_ledger.scan import scan_steps
from badput_ledger.store import SQL_TYPES

S = 1_000_000_000
A, B = "GPU-aaaa", "GPU-bbbb"


@pytest.fixture
def con():
    made = duckdb.connect()
    for table in TABLES.values():
        columns = ", ".join(f'"{c.name}" {SQL_TYPES[c.type]}' for c in table.columns)
        made.execute(f"CREATE TABLE {table.name} ({columns})")
    scan_steps(made, [])
    return made


def put(con, table, rows):
    columns = sorted({column for row in rows for column in row})
    marks = ", ".join("?" for _ in columns)
    con.executemany(
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})",
        [[row.get(c) for c in columns] for row in rows],
    )


def process(con, pid=1, **more):
    put(con, "processes", [
        {"process_id": pid, "rank": pid - 1, "role": "rank", "start_ns": S, "host": "h", **more}
    ])  # fmt: skip


def said(con, seq, time=2, pid=1, **attrs):
    row = {"process_id": pid, "seq": seq, "rank": pid - 1, "time_ns": time * S, "kind": "device"}
    put(con, "events", [{**row, "attrs": json.dumps(attrs)}])


def gpu(con, uuid, bus, name="H100", **more):
    put(con, "devices", [
        {"host": "h", "gpu_uuid": uuid, "time_ns": S, "pci_bus_id": bus, "name": name, **more}
    ])  # fmt: skip


def only(con):
    (found,), _ = read_processes(con)
    return found.gpu_uuid, found.gpu_type, found.gpu_mapping


def test_without_a_device_event_the_first_row_holds(con):
    process(con, gpu_uuid=A, gpu_type=None)
    assert only(con) == (A, None, None)


def test_what_cuda_told_the_rank_beats_what_the_collector_found(con):
    """torch says [B, A] where NVML lists [A, B]: rank 0 is on B."""
    gpu(con, A, "0000:01:00", "T400")
    gpu(con, B, "0000:02:00", "A100")
    process(con, gpu_type="cpu")
    said(con, -1, gpu_uuid=A, gpu_type="T400", mapping="unverified", time=5)
    said(con, 7, gpu_uuid="bbbb", gpu_type="A100", time=3)
    assert only(con) == (B, "A100", "itself")


def test_a_later_and_better_finding_of_the_collector_holds(con):
    process(con)
    said(con, -1, gpu_uuid=A, gpu_type="H100", mapping="unverified", time=2)
    said(con, -2, gpu_uuid=B, gpu_type="H100", mapping="pid", time=9)
    said(con, -3, gpu_uuid=None, gpu_type=None, mapping="unresolved", time=12)
    assert only(con) == (B, "H100", "pid")


def test_a_place_on_the_bus_will_do(con):
    gpu(con, A, "0000:01:00", "T400")
    gpu(con, B, "0000:3b:00", "A100")
    process(con, gpu_type=None)
    said(con, 7, pci_bus_id="00000000:3B:00.0")
    assert only(con) == (B, "A100", "itself")


def test_cuda_does_not_say_that_its_gpu_is_a_mig_instance(con):
    gpu(con, A, "0000:01:00")
    gpu(con, "MIG-1234", "0000:01:00", "H100 MIG 1g.10gb", parent_uuid=A)
    process(con, gpu_type=None)
    said(con, 7, gpu_uuid="GPU-1234")
    assert only(con) == ("MIG-1234", "H100 MIG 1g.10gb", "itself")


def test_what_the_best_event_leaves_open_the_next_ones_fill_in(con):
    process(con, gpu_type=None)
    said(con, 7, gpu_type="H100")
    said(con, -1, gpu_uuid=A, gpu_type="H100", mapping="pci")
    assert only(con) == (A, "H100", "pci")


def test_a_rank_without_a_gpu_has_none(con):
    process(con, gpu_uuid=A, gpu_type=None)
    said(con, -1, gpu_uuid=None, gpu_type="cpu", mapping="none")
    assert only(con) == (None, "cpu", None)


def test_unresolved_still_knows_the_type_and_a_broken_driver_changes_nothing(con):
    process(con, gpu_type=None)
    said(con, -1, gpu_uuid=None, gpu_type="H100", mapping="unresolved")
    process(con, 2, gpu_uuid=B)
    said(con, -1, pid=2, gpu_uuid=None, gpu_type=None, mapping="unresolved", reason="x")
    one, two = sorted(read_processes(con)[0], key=lambda p: p.process_id)
    assert (one.gpu_uuid, one.gpu_type) == (None, "H100")
    assert (two.gpu_uuid, two.gpu_type) == (B, None)


def test_odd_attributes_are_no_evidence(con):
    process(con, gpu_uuid=A, gpu_type="H100")
    said(con, -1, gpu_uuid=7, gpu_type=None, mapping=[1])
    said(con, 7, gpu_uuid="", pci_bus_id=9)
    put(con, "events", [{"process_id": 1, "seq": 8, "time_ns": S, "kind": "device", "attrs": "{"}])
    assert only(con) == (A, "H100", None)


# -- energy -----------------------------------------------------------------------------------
def sample(uuid, second, **more):
    return {"host": "h", "gpu_uuid": uuid, "time_ns": round(second * S), **more}


def test_without_a_counter_power_is_integrated_and_said(con):
    put(con, "gpu_samples", [sample(A, t, power_w=300.0) for t in range(0, 3601, 5)])
    (found,) = gpu_energy(con, 0, 3600 * S)
    assert found.joules == pytest.approx(0.3 * KWH)
    assert (found.source, found.covered_ns) == ("power_integral", 3600 * S)


def test_what_nobody_measured_is_unknown_and_not_zero(con):
    put(con, "gpu_samples", [sample(A, t, utilization=0.5) for t in range(10)])
    (found,) = gpu_energy(con, 0, 10 * S)
    assert (found.joules, found.source, found.reason) == (None, None, "not_measured")
    assert total_energy([found]) is None
    assert total_energy([]) is None
    assert gpu_energy(con, 0, 10 * S)[0].covered_ns == 0


def test_a_counter_is_preferred_to_power(con):
    rows = [sample(A, t, energy_j=1000.0 + 100.0 * t, power_w=500.0) for t in range(0, 101, 5)]
    put(con, "gpu_samples", rows)
    (found,) = gpu_energy(con, 0, 100 * S)
    assert (found.joules, found.source) == (pytest.approx(10_000), "counter")
    (part,) = gpu_energy(con, 12 * S, 34 * S)
    assert part.joules == pytest.approx(2_200), "the ends of a window need not be samples"


def test_samplers_of_the_same_gpus_count_once(con):
    for sampler in range(8):
        put(con, "gpu_samples", [
            sample(f"GPU-{gpu}", t + sampler * 0.01, power_w=100.0)
            for gpu in range(8) for t in range(0, 3601, 30)
        ])  # fmt: skip
    found = gpu_energy(con, 0, 3600 * S)
    assert len(found) == 8
    assert total_energy(found) == pytest.approx(0.8 * KWH, rel=1e-3)


def test_a_part_is_not_the_whole(con):
    put(con, "gpu_samples", [sample(A, t, power_w=100.0) for t in range(10)])
    put(con, "gpu_samples", [sample(B, t, utilization=1.0) for t in range(10)])
    assert total_energy(gpu_energy(con, 0, 9 * S)) is None


def test_a_square_wave_behind_a_sensor_that_averages_a_second(con):
    """100 and 500 W in turns, 2 s each way round, read at 10 Hz from a mean over one second."""

    def power(t):
        return 500.0 if math.floor(t) % 2 else 100.0

    def averaged(t):
        return sum(power(t - k / 100) for k in range(100)) / 100

    put(con, "gpu_samples", [sample(A, k / 10, power_w=averaged(k / 10)) for k in range(901)])
    (found,) = gpu_energy(con, 10 * S, 80 * S)
    assert found.joules == pytest.approx(300 * 70, rel=0.02)


def test_a_counter_that_ticks_slowly_makes_no_step_free(con):
    rows = [sample(A, k / 10, energy_j=50.0 * (k // 5)) for k in range(101)]
    put(con, "gpu_samples", rows)
    (short,) = gpu_energy(con, 2 * S, 2 * S + S // 5)
    assert (short.joules, short.reason) == (None, "window_too_short")
    (longer,) = gpu_energy(con, 2 * S, 7 * S)
    assert longer.joules == pytest.approx(500, rel=0.1)


def test_a_counter_that_begins_anew_is_bridged_by_power(con):
    rows = [sample(A, t, energy_j=100.0 * t, power_w=100.0) for t in range(0, 51, 5)]
    rows += [sample(A, t, energy_j=100.0 * (t - 55), power_w=100.0) for t in range(55, 101, 5)]
    put(con, "gpu_samples", rows)
    (found,) = gpu_energy(con, 0, 100 * S)
    assert (found.joules, found.source) == (pytest.approx(10_000), "counter")


def test_a_gap_in_power_is_not_filled(con):
    put(con, "gpu_samples", [sample(A, t, power_w=100.0) for t in (0, 5, 10, 1000, 1005)])
    (found,) = gpu_energy(con, 0, 1005 * S)
    assert (found.joules, found.covered_ns) == (pytest.approx(1500), 15 * S)


def test_a_mig_instance_has_no_energy_of_its_own(con):
    gpu(con, A, "0000:01:00")
    gpu(con, "MIG-1", "0000:01:00", parent_uuid=A)
    put(con, "gpu_samples", [sample(u, t, power_w=100.0) for u in (A, "MIG-1") for t in range(11)])
    (found,) = gpu_energy(con, 0, 10 * S)
    assert (found.gpu_uuid, found.joules) == (A, pytest.approx(1000))
