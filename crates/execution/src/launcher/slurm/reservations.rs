//! Slurm's reservations: nodes that are kept for somebody, or for maintenance, from some time on (scontrol(1), "Reservations").

use super::command::Programs;
use super::hostlist;
use super::settings::word;
use crate::launcher::LaunchError;

/// A reservation of whole nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reservation {
    pub(super) name: String,
    /// When it begins, as Slurm prints it.
    pub(super) from: String,
    pub(super) nodes: Vec<String>,
}

impl Reservation {
    /// Asks Slurm for those that have not ended.
    pub(super) fn read_all(programs: &Programs) -> Result<Vec<Reservation>, LaunchError> {
        let arguments = ["show", "reservations", "--oneliner"].map(str::to_owned);
        Ok(Reservation::of(&String::from_utf8_lossy(&programs.run("scontrol", &arguments)?)))
    }

    /// Reads one reservation from each line. Two kinds are passed over, since gangs may still run on their nodes: a reservation of
    /// single cores, and a magnetic one, which takes its users' jobs though they don't name it.
    fn of(text: &str) -> Vec<Reservation> {
        let read = |line: &str| {
            let flags = word(line, "Flags").unwrap_or_default();
            let is_open = line.contains("CoreIDs=") || flags.split(',').any(|flag| flag == "MAGNETIC");
            let nodes = word(line, "Nodes").filter(|nodes| *nodes != "(null)" && !is_open)?;
            Some(Reservation {
                name: word(line, "ReservationName")?.to_owned(),
                from: word(line, "StartTime").unwrap_or_default().to_owned(),
                nodes: hostlist::expand(nodes).ok()?,
            })
        };
        text.lines().filter_map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Slurm 22.05 prints them.
    const RESERVATIONS: &str = "\
ReservationName=maint StartTime=2026-12-02T08:00:00 EndTime=2026-12-02T12:00:00 Duration=04:00:00 Nodes=n[1-2] NodeCnt=2 CoreCnt=32 \
Features=(null) PartitionName=main Flags=MAINT,SPEC_NODES TRES=cpu=32 Users=root Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE
ReservationName=half StartTime=2026-12-01T08:00:00 EndTime=2026-12-01T12:00:00 Nodes=n3 NodeCnt=1 CoreCnt=2 Flags=SPEC_NODES   NodeName=n3 CoreIDs=0-1 Users=ada
ReservationName=course StartTime=2026-12-01T08:00:00 Nodes=n4 Flags=SPEC_NODES,MAGNETIC Users=ada
ReservationName=licences StartTime=2026-12-01T08:00:00 Nodes=(null) Flags=ANY_NODES Licenses=matlab:3
";

    #[test]
    fn reservations_of_whole_nodes_are_read() {
        let maint = Reservation {
            name: "maint".to_owned(),
            from: "2026-12-02T08:00:00".to_owned(),
            nodes: vec!["n1".to_owned(), "n2".to_owned()],
        };
        assert_eq!(Reservation::of(RESERVATIONS), [maint]);
        assert_eq!(Reservation::of("No reservations in the system\n"), []);
    }
}
