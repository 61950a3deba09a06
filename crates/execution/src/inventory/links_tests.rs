//! Matrices from real machines: how they are parsed, and how their GPUs are grouped.

use super::links::{Link, read_links};

/// An HGX machine: NVSwitch joins all its GPUs, four of which are close to each socket.
const NVSWITCH: &str = "\
    \t\u{1b}[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\u{1b}[0m
GPU0\t X \tNV18\tNV18\tNV18\tPXB\tSYS\t0-55,112-167\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tNV18\tNODE\tSYS\t0-55,112-167\t0\t\tN/A
GPU2\tNV18\tNV18\t X \tNV18\tSYS\tPXB\t56-111,168-223\t1\t\tN/A
GPU3\tNV18\tNV18\tNV18\t X \tSYS\tNODE\t56-111,168-223\t1\t\tN/A
NIC0\tPXB\tNODE\tSYS\tSYS\t X \tSYS\t\t\t\t
NIC1\tSYS\tSYS\tPXB\tNODE\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
";

/// DGX-1 with V100: six links for each GPU, not all pairs connected.
const CUBE_MESH: &str = "\
$ nvidia-smi topo -m
        GPU0    GPU1    GPU2    GPU3    GPU4    GPU5    GPU6    GPU7    mlx5_0  CPU Affinity
GPU0     X      NV1     NV1     NV2     NV2     SYS     SYS     SYS     PIX     0-19,40-59
GPU1    NV1      X      NV2     NV1     SYS     NV2     SYS     SYS     PIX     0-19,40-59
GPU2    NV1     NV2      X      NV2     SYS     SYS     NV1     SYS     PHB     0-19,40-59
GPU3    NV2     NV1     NV2      X      SYS     SYS     SYS     NV1     PHB     0-19,40-59
GPU4    NV2     SYS     SYS     SYS      X      NV1     NV1     NV2     SYS     20-39,60-79
GPU5    SYS     NV2     SYS     SYS     NV1      X      NV2     NV1     SYS     20-39,60-79
GPU6    SYS     SYS     NV1     SYS     NV1     NV2      X      NV2     SYS     20-39,60-79
GPU7    SYS     SYS     SYS     NV1     NV2     NV1     NV2      X      SYS     20-39,60-79
mlx5_0  PIX     PIX     PHB     PHB     SYS     SYS     SYS     SYS      X
";

/// A100 on PCIe: two pairs with a bridge of NVLinks, each between sockets' quarters.
const BRIDGED_PAIRS: &str = "\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV12\tSYS\tSYS\t0-23\t0\t\tN/A
GPU1\tNV12\t X \tSYS\tSYS\t24-47\t1\t\tN/A
GPU2\tSYS\tSYS\t X \tNV12\t48-71\t2\t\tN/A
GPU3\tSYS\tSYS\tNV12\t X \t72-95\t3\t\tN/A
";

/// L40S: PCIe only, two behind each bridge, one socket; copied without the head's first tab.
const PCIE: &str = "\
GPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tPIX\tNODE\tNODE\t0-15,32-47\t0\t\tN/A
GPU1\tPIX\t X \tNODE\tNODE\t0-15,32-47\t0\t\tN/A
GPU2\tNODE\tNODE\t X \tPIX\t0-15,32-47\t0\t\tN/A
GPU3\tNODE\tNODE\tPIX\t X \t0-15,32-47\t0\t\tN/A
";

/// Eight Volta GPUs on two sockets, from before the column of NUMA nodes existed.
const TWO_SOCKETS: &str = "\
\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tCPU Affinity
GPU0\t X \tPIX\tPHB\tPHB\tSOC\tSOC\tSOC\tSOC\t0-13,28-41
GPU1\tPIX\t X \tPHB\tPHB\tSOC\tSOC\tSOC\tSOC\t0-13,28-41
GPU2\tPHB\tPHB\t X \tPIX\tSOC\tSOC\tSOC\tSOC\t0-13,28-41
GPU3\tPHB\tPHB\tPIX\t X \tSOC\tSOC\tSOC\tSOC\t0-13,28-41
GPU4\tSOC\tSOC\tSOC\tSOC\t X \tPIX\tPHB\tPHB\t14-27,42-55
GPU5\tSOC\tSOC\tSOC\tSOC\tPIX\t X \tPHB\tPHB\t14-27,42-55
GPU6\tSOC\tSOC\tSOC\tSOC\tPHB\tPHB\t X \tPIX\t14-27,42-55
GPU7\tSOC\tSOC\tSOC\tSOC\tPHB\tPHB\tPIX\t X \t14-27,42-55
";

/// A virtual machine that hides its bridges, but not its sockets.
const VIRTUAL: &str = "\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tSYS\tSYS\tSYS\t0-55,112-167\t0\t\tN/A
GPU1\tSYS\t X \tSYS\tSYS\t0-55,112-167\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tSYS\t56-111,168-223\t1\t\tN/A
GPU3\tSYS\tSYS\tSYS\t X \t56-111,168-223\t1\t\tN/A
";

fn tiers(text: &str) -> Vec<Vec<u32>> {
    let layout = read_links(text).expect("it was printed so").layout().expect("its groups are nested");
    layout.tiers().map(<[u32]>::to_vec).collect()
}

#[test]
fn a_matrix_gives_links_network_cards_and_affinities() {
    let matrix = read_links(NVSWITCH).expect("it was printed so");
    assert_eq!(matrix.network_cards, ["NIC0", "NIC1"]);
    let last = &matrix.gpus[3];
    assert_eq!(last.gpus, [Link::NvLink(18), Link::NvLink(18), Link::NvLink(18), Link::Same]);
    assert_eq!(last.network_cards, [Link::System, Link::NumaNode]);
    assert_eq!((last.cpus.as_deref(), last.numa.as_deref()), (Some("56-111,168-223"), Some("1")));
}

#[test]
fn cells_without_a_value_are_unknown() {
    let text = "GPU0 GPU1 CPU Affinity NUMA Affinity GPU NUMA ID\nGPU0 X NV4 44-51 0 N/A\nGPU1\tNV4\tX\t\t1\t\tN/A\n";
    let matrix = read_links(text).expect("sound");
    assert_eq!((matrix.gpus[1].cpus.as_deref(), matrix.gpus[1].numa.as_deref()), (None, Some("1")));
    let alone = read_links("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\t\tN/A\n").expect("sound");
    assert_eq!((alone.gpus[0].cpus.as_deref(), alone.gpus[0].numa.as_deref()), (Some("0-7"), None));
    assert!(alone.layout().expect("sound").is_unknown());
}

#[test]
fn nvlink_islands_come_first_and_are_told_apart_by_their_sockets() {
    assert_eq!(tiers(NVSWITCH), [[0, 0, 1, 1]]);
    assert_eq!(tiers(CUBE_MESH), [[0, 0, 0, 0, 1, 1, 1, 1]]);
    assert_eq!(tiers(BRIDGED_PAIRS), [[0, 0, 1, 1]]);
}

#[test]
fn without_nvlink_bridges_and_then_numa_nodes_are_the_groups() {
    assert_eq!(tiers(PCIE), [[0, 0, 1, 1]]);
    assert_eq!(tiers(TWO_SOCKETS), [[0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 0, 0, 1, 1, 1, 1]]);
    assert_eq!(tiers(VIRTUAL), [[0, 0, 1, 1]]);
}

#[test]
fn what_is_no_matrix_is_refused_with_its_place() {
    let check = |text: &str, expected: &str| {
        assert_eq!(read_links(text).expect_err("a refusal").to_string(), expected);
    };
    check("No devices were found\n", "1:1: no line begins with GPU0 GPU1 ...: give what nvidia-smi topo -m prints");
    check("GPU0 GPU2 CPU Affinity\n", "1:6: GPU1 has to be here, not GPU2");
    check("GPU0 GPU1\nGPU0 X NV1\n", "2:1: 2 GPU(s) are in the head, but 1 have a row: give all lines");
    check("GPU0 GPU1\nGPU0 X NV1\nGPU3 NV1 X\n", "3:1: the row of GPU1 has to be here");
    check("GPU0 GPU1\nGPU0 X\n", "2:7: 2 links belong here, one for each device");
    check("GPU0 GPU1\nGPU0 X NV\nGPU1 NV X", "2:8: \"NV\" is no link: X, NV1, PIX, PXB, PHB, NODE or SYS belongs here");
    check("GPU0 GPU1\nGPU0 X SYS 0-3\nGPU1 SYS X 0-3", "2:12: more cells than the 2 that have a head");
    check("GPU0 GPU1\nGPU0 X PIX\nGPU1 SYS X", "3:1: GPU1 reaches GPU0 by SYS, but GPU0 reaches it by PIX");
    check("GPU0 GPU1\nGPU0 NV1 X\nGPU1 X NV1", "2:1: GPU0 and GPU0 are joined by NV1: X is a GPU itself");
    check(&"x".repeat((1 << 20) + 1), "1:1: the text is longer than 1048576 bytes");
    let many: Vec<String> = (0..65).map(|number| format!("GPU{number}")).collect();
    check(&many.join(" "), "1:375: more than 64 GPUs");
}
