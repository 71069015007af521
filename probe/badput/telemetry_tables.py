"""Tables of what a node's collector measures itself: its GPUs and the node as a whole."""

from __future__ import annotations

from badput.columns import Table, col, key

TELEMETRY = (
    Table(
        "devices",
        "One row for each GPU and time that a collector began to sample it.",
        (
            key("host", "string", "", "host name"),
            key("gpu_uuid", "string", "", "GPU, or MIG instance"),
            key("time_ns", "int64", "ns since epoch", "when this was found"),
            col("boot_id", "string", "", "kernel boot id of the host"),
            col("name", "string", "", "the driver's name of the GPU; NULL if it has none to tell"),
            col("number", "int32", "index", "NVML index, which is not CUDA's; only to show"),
            col("pci_bus_id", "string", "", "PCI bus id"),
            col("parent_uuid", "string", "", "GPU that a MIG instance is part of"),
            col("memory_bytes", "int64", "bytes", "memory in all"),
            col("power_limit_w", "float64", "W", "enforced power limit"),
            col(
                "power_kind",
                "string",
                "",
                "what its power is: average_1s or instant; NULL if unknown",
            ),
            col("driver", "string", "", "driver version"),
            col("library", "string", "", "distribution and version of the NVML binding"),
            col(
                "capabilities",
                "string",
                "JSON",
                "by metric: ok, or why it is NULL (not_supported, no_function, no_permission, ...)",
            ),
        ),
    ),
    Table(
        "gpu_samples",
        "Telemetry of one GPU, once a node and interval. What devices.capabilities says is not "
        "there is NULL.",
        (
            key("host", "string", "", "host name"),
            key("gpu_uuid", "string", "", "GPU, or MIG instance"),
            key("time_ns", "int64", "ns since epoch", "when"),
            col("sample_ns", "int64", "ns", "how long the reading took"),
            col("utilization", "float64", "ratio", "NVML utilisation, 0..1: a kernel was running"),
            col(
                "memory_utilization",
                "float64",
                "ratio",
                "share of time that memory was moved, 0..1",
            ),
            col("memory_bytes", "int64", "bytes", "memory in use"),
            col("power_w", "float64", "W", "power; a 1 s average on newer chips"),
            col("energy_j", "float64", "J", "energy counter"),
            col("temperature_c", "float64", "C", "temperature"),
            col("sm_clock_mhz", "float64", "MHz", "SM clock"),
            col("memory_clock_mhz", "float64", "MHz", "memory clock"),
            col(
                "throttle", "int64", "bit mask", "NVML clock event reasons as the driver gave them"
            ),
            col(
                "throttle_names",
                "string",
                "",
                "the reasons by name, idle left out, comma separated",
            ),
            col(
                "pcie_tx_bytes_s",
                "float64",
                "bytes/s",
                "PCIe sent: mean since the sample before, or over 20 ms where there is no counter",
            ),
            col("pcie_rx_bytes_s", "float64", "bytes/s", "PCIe received"),
            col("nvlink_tx_bytes", "int64", "bytes", "NVLink counter, sent, all links"),
            col("nvlink_rx_bytes", "int64", "bytes", "NVLink counter, received, all links"),
            col(
                "ecc_corrected", "int64", "count", "corrected memory errors since the driver loaded"
            ),
            col("ecc_uncorrected", "int64", "count", "uncorrected memory errors since then"),
            col("processes", "int32", "count", "processes that compute on it"),
        ),
    ),
    Table(
        "host_samples",
        "The node as a whole, once an interval. Rates are means since the sample before.",
        (
            key("host", "string", "", "host name"),
            key("time_ns", "int64", "ns since epoch", "when"),
            col("boot_id", "string", "", "kernel boot id of the host"),
            col("cpu", "float64", "ratio", "share of all cores at work, 0..1"),
            col("load_1m", "float64", "count", "load average of one minute"),
            col(
                "memory_bytes", "int64", "bytes", "memory in use that cannot be given back at once"
            ),
            col("memory_total_bytes", "int64", "bytes", "memory in all"),
            col(
                "cgroup_memory_bytes", "int64", "bytes", "memory charged to the run's control group"
            ),
            col("cgroup_limit_bytes", "int64", "bytes", "its limit; NULL if there is none"),
            col("oom_kills", "int64", "count", "out-of-memory kills in it so far"),
            col("disk_read_bytes_s", "float64", "bytes/s", "read from local disks"),
            col("disk_write_bytes_s", "float64", "bytes/s", "written to local disks"),
            col(
                "net_sent_bytes_s",
                "float64",
                "bytes/s",
                "sent on network cards, or else on all but loopback",
            ),
            col("net_received_bytes_s", "float64", "bytes/s", "received on them"),
            col("rdma_sent_bytes_s", "float64", "bytes/s", "sent by InfiniBand or RoCE"),
            col("rdma_received_bytes_s", "float64", "bytes/s", "received by them"),
            col("gpu_telemetry", "string", "", "ok, or why there are no samples of GPUs"),
        ),
    ),
)
