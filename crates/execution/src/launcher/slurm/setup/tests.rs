//! What machines say becomes files, or is refused with the machine and what to do.

use std::fs;

use super::*;

const GPU1: &str = "node gpu1\nhostname gpu1\nsystem debian\ncpus 32\ncores 2 16\nmemory_kib 264241152\ninit systemd\n\
cgroups yes\nroot yes\ngpu /dev/nvidia1 NVIDIA H100 80GB HBM3\ngpu /dev/nvidia0 NVIDIA H100 80GB HBM3\n\
address gpu1 127.0.1.1\naddress 10.0.0.2 10.0.0.2\nend\n";
const GPU2: &str = "node ubuntu@10.0.0.2\nhostname ip-10-0-0-2\nsystem ubuntu debian\ncpus 5\ncores 1 8\nmemory_kib 67108864\n\
memory_limit 1073741824\nroot sudo\nslurm-wlm 23.11.4\ngpu /dev/nvidia0 NVIDIA L4\ngpu /dev/nvidia2 NVIDIA L4\n\
address gpu1 10.0.0.1\naddress 10.0.0.2 10.0.0.2\nend\n";

fn options() -> SetupOptions {
    SetupOptions {
        cluster: "gangline".to_owned(),
        controller: None,
        nodes: None,
        without_gpus: false,
        reach: "ssh -o BatchMode=yes".to_owned(),
    }
}

fn planned(text: &str) -> Plan {
    plan(&read(text).expect("facts"), &options()).expect("a plan")
}

fn file(plan: &Plan, name: &str) -> String {
    plan.files.iter().find(|(file, _)| *file == name).map(|(_, text)| text.clone()).expect("it is planned")
}

#[test]
fn two_machines_become_a_cluster() {
    let plan = planned(&(GPU1.to_owned() + GPU2));
    let conf = file(&plan, "slurm.conf");
    for line in [
        MARK,
        "SlurmctldHost=gpu1",
        "ProctrackType=proctrack/linuxproc",
        "GresTypes=gpu",
        // What a container may use counts, and cores that aren't all its own aren't said.
        "NodeName=ip-10-0-0-2 NodeAddr=10.0.0.2 CPUs=5 RealMemory=993 Gres=gpu:l4:2 State=UNKNOWN",
        "NodeName=gpu1 CPUs=32 Sockets=2 CoresPerSocket=8 ThreadsPerCore=2 RealMemory=250306 Gres=gpu:h100:2 State=UNKNOWN",
        "PartitionName=main Nodes=gpu1,ip-10-0-0-2 Default=YES MaxTime=INFINITE State=UP",
    ] {
        assert!(conf.lines().any(|there| there == line), "no {line}\n{conf}");
    }
    let gres = "NodeName=gpu1 Name=gpu Type=h100 File=/dev/nvidia[0-1]\nNodeName=ip-10-0-0-2 Name=gpu Type=l4 File=/dev/nvidia[0,2]\n";
    assert_eq!(file(&plan, "gres.conf"), format!("{MARK}\nAutoDetect=off\n{gres}"));
    let install = file(&plan, "install");
    assert!(
        install.contains("controller=gpu1\nnodes='gpu1 ip-10-0-0-2'\naddresses='10.0.0.1 10.0.0.2'\n"),
        "{install}"
    );
    assert!(file(&plan, "everywhere").contains("<<END\ngpu1 gpu1\nip-10-0-0-2 ubuntu@10.0.0.2\nEND\n"));
    assert!(file(&plan, "check").contains("for pair in gpu1=h100:2 ip-10-0-0-2=l4:2; do"));
    assert!(plan.files.iter().all(|(name, text)| !text.contains('@') || *name != "install"), "all is filled in");
    let warned = plan.warnings.join("\n");
    assert!(warned.contains("without systemd or control groups: ip-10-0-0-2."), "{warned}");
    assert!(warned.contains("different systems (debian, ubuntu)"), "{warned}");
}

#[test]
fn machines_with_systemd_keep_jobs_to_their_devices() {
    let plan = planned(GPU1);
    assert!(
        file(&plan, "slurm.conf").contains("ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup,task/affinity\n")
    );
    assert!(file(&plan, "cgroup.conf").contains("ConstrainDevices=yes"));
    assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
}

#[test]
fn what_can_be_no_cluster_is_refused_with_the_machine() {
    let check = |text: &str, expected: &str| {
        let error = read(text).and_then(|facts| plan(&facts, &options())).expect_err(expected);
        assert_eq!(error.to_string(), expected);
        assert!(!error.hint().is_empty());
    };
    let both = GPU1.to_owned() + GPU2;
    check(&both.replace("hostname ip-10-0-0-2", "hostname gpu1"), "gpu1 and ubuntu@10.0.0.2 both call themselves gpu1");
    check(&both.replace("address gpu1 10.0.0.1", "address gpu1 "), "\"gpu1\" doesn't resolve on ip-10-0-0-2");
    check(&both.replace("address gpu1 10.0.0.1", "address gpu1 127.0.0.1"), "\"gpu1\" is 127.0.0.1 on ip-10-0-0-2");
    let foreign = GPU1.replace("end", "conf foreign /etc/slurm/slurm.conf");
    check(&foreign, "gpu1 has a Slurm already: /etc/slurm/slurm.conf isn't from gangline slurm init");
    let bare = GPU1.replace("gpu /dev", "address 10.0.0.9 10.0.0.9\n# ");
    check(&bare, "no NVIDIA GPU was found on any of the machines");
    check(&GPU1.replace("root yes", "slurm 20.11.9"), "gpu1 has Slurm 20.11.9; Gangline needs 22.05 or later");
    check("", "there is no node");
    check(&GPU1.replace("cpus 32\n", ""), "gpu1 doesn't say its host name, its CPUs or its memory");
    // Nothing that a machine says of itself can become a command of root's.
    for (word, hostile) in
        [("node gpu1", "node -oProxyCommand=x"), ("/dev/nvidia1", "/dev/$(reboot)"), ("node gpu1", "node a;b")]
    {
        let error = read(&GPU1.replace(word, hostile)).expect_err(hostile);
        assert!(matches!(error, SetupError::Facts { .. }), "{error}");
    }
    let error = read(&GPU1.replace("hostname gpu1", "hostname x;reboot")).expect_err("hostile");
    assert!(matches!(error, SetupError::Incomplete(_)), "{error}");
}

#[test]
fn lists_of_machines_are_read_as_slurm_reads_them() {
    let check = |list: &str, expected: &str| match machines(list) {
        Ok(names) => assert_eq!(names.join(" "), expected),
        Err(error) => assert_eq!(error.to_string(), expected),
    };
    check("gpu[1-3],root@10.0.0.7", "gpu1 gpu2 gpu3 root@10.0.0.7");
    check("a,b,a", "\"a\" is named twice");
    check("a,root@a", "\"root@a\" is named twice");
    check("a,,b", "\"a,,b\" has an empty name");
    check("a,b;reboot", "\"b;reboot\" is no name of a machine: letters, digits, - and _, and a dot only in addresses");
    check("gpu[1-2000]", "there are more than 1000 machines");
}

#[test]
fn this_machine_answers_and_one_that_cannot_be_reached_is_named() {
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let text = ask(std::slice::from_ref(&own), "false").expect("no command reaches this machine: it isn't needed");
    let facts = read(&text).expect("facts");
    assert!(facts.len() == 1 && facts[0].cpus > 0 && facts[0].memory.0 > 0, "{text}");
    let error = ask(&[own, "elsewhere".to_owned()], "sh -c false").expect_err("it isn't there");
    assert_eq!(error.to_string(), "no answer from elsewhere (no answer)");
}

#[test]
fn only_files_that_were_written_here_are_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("slurm");
    write(&planned(GPU1), &out).expect("a first time");
    let key = fs::read(out.join(KEY_FILE)).expect("a key");
    assert_eq!(key.len(), 128);
    write(&planned(&(GPU1.to_owned() + GPU2)), &out).expect("a second time");
    assert_eq!(fs::read(out.join(KEY_FILE)).expect("a key"), key, "machines that have it stay in the cluster");
    assert!(fs::read_to_string(out.join("slurm.conf")).expect("it").contains("NodeAddr=10.0.0.2"));
    fs::write(out.join("gres.conf"), "NodeName=x Name=gpu\n").expect("somebody writes");
    fs::remove_file(out.join("slurm.conf")).expect("somebody removes");
    let error = write(&planned(GPU1), &out).expect_err("it is somebody's");
    assert!(error.to_string().ends_with("gres.conf is there and isn't from gangline slurm init"), "{error}");
    assert!(!out.join("slurm.conf").exists(), "nothing was written");
}
