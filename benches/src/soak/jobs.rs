//! The jobs of the soak: small programs that write into a witness file of their own what they do, so that what ran is known
//! without asking the product.

use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng as _;

/// The program of every rank: `SCRIPT WITNESS KIND TENTHS`, a tenth of a second each. A line is one write to a file that is opened for appending, so
/// the order of the lines is the order in which things happened.
pub(super) const SCRIPT: &str = r#"
witness=$1$POINT kind=$2 tenths=$3
say() { printf '%s %s %s %s %s %s %s\n' "$1" "$GANGLINE_JOB_ID" "$GANGLINE_ATTEMPT" "$RANK" "$$" "$EPOCHREALTIME" "$2" >> "$witness"; }
# When a process began that isn't only waiting to be reaped; with its number, that names it.
began() {
  local line
  { read -r line < "/proc/$1/stat"; } 2> /dev/null || return 1
  line=(${line##*) })
  [[ ${line[0]} != [ZX] ]] && began=${line[19]}
}
exec 9<> <(:)
if [ -e "$witness" ]; then
  while read -r what _ attempt _ pid _ since; do
    [ "$what" = start ] && ((attempt < GANGLINE_ATTEMPT)) && began "$pid" && [ "$began" = "$since" ] && say beside "$attempt"
  done < "$witness"
fi
began $$
say start "$began"
case $kind in
  stubborn) trap '' TERM; setsid sleep 1000 & ;;
  fat) printf -v memory '%*s' 60000000 '' ;;
  chatty) echo "rank $RANK of $WORLD_SIZE speaks"; echo "and complains" >&2 ;;
esac
for ((turn = 0; turn < tenths; turn++)); do
  read -rt 0.1 -u 9
  ((turn % 3)) || say beat
  [ "$kind" = chatty ] && echo "turn $turn"
done
case $kind in
  refuses) say refuses; exit 93 ;;
  again) grep -q ^again "$witness" || { say again; exit 94; } ;;
  faulty) grep -q ^faulty "$witness" || { say faulty; exit 7; } ;;
esac
say end
exit 0
"#;

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Waits, and ends.
    Plain,
    /// Two ranks on a node.
    Gang,
    /// A rank on each of two nodes.
    Wide,
    /// Prints.
    Chatty,
    /// Ends with 93: never again.
    Refuses,
    /// Ends with 94 at first: once more.
    Again,
    /// Fails at first.
    Faulty,
    /// Ignores SIGTERM and leaves a process behind in a session of its own.
    Stubborn,
    /// Takes memory, which a process needs a moment to give back.
    Fat,
    /// One of a sweep's.
    Point,
}

/// How often each kind comes, of a hundred.
const SHARES: [(Kind, u64); 10] = [
    (Kind::Plain, 32),
    (Kind::Gang, 12),
    (Kind::Wide, 12),
    (Kind::Chatty, 8),
    (Kind::Refuses, 4),
    (Kind::Again, 6),
    (Kind::Faulty, 6),
    (Kind::Stubborn, 8),
    (Kind::Fat, 4),
    (Kind::Point, 8),
];
/// The longest time that a job's loop takes, in tenths of a second.
const TENTHS_MAX: u64 = 100;
/// The values of a sweep's one parameter.
pub(super) const POINTS: [&str; 3] = ["a", "b", "c"];

impl Kind {
    /// One by chance.
    pub(super) fn any(random: &mut ChaCha8Rng) -> Kind {
        let mut left = random.next_u64() % 100;
        for (kind, share) in SHARES {
            if left < share {
                return kind;
            }
            left -= share;
        }
        Kind::Plain
    }

    /// How many ranks it has.
    pub(super) fn ranks(self) -> usize {
        if matches!(self, Kind::Gang | Kind::Wide) { 2 } else { 1 }
    }

    /// The state it ends in unless somebody cancels it.
    pub(super) fn end(self) -> &'static str {
        if self == Kind::Refuses { "failed" } else { "succeeded" }
    }

    fn word(self) -> &'static str {
        match self {
            Kind::Plain | Kind::Gang | Kind::Wide | Kind::Point => "plain",
            Kind::Chatty => "chatty",
            Kind::Refuses => "refuses",
            Kind::Again => "again",
            Kind::Faulty => "faulty",
            Kind::Stubborn => "stubborn",
            Kind::Fat => "fat",
        }
    }

    fn shape(self) -> &'static str {
        match self {
            Kind::Gang => "resources: {accelerators: \"cpu:2\"}\n",
            Kind::Wide => "num_nodes: 2\n",
            Kind::Point => "sweep: {POINT: [a, b, c]}\n",
            _ => "",
        }
    }

    /// A job file that runs `script` with this witness file (a sweep's jobs add their values to its name), and for how long.
    pub(super) fn file(self, name: &str, script: &Path, witness: &Path, random: &mut ChaCha8Rng) -> String {
        let (tenths, priority) = (random.next_u64() % TENTHS_MAX, [250, 500, 500, 750][pick(random, 4)]);
        format!(
            "name: {name}\npriority: {priority}\n{}recovery: {{max_faults: 10000, no_progress_limit: 10000}}\n\
             checkpoint: {{grace: 2s}}\nrun: exec bash '{}' '{}' {} {tenths}\n",
            self.shape(),
            script.display(),
            witness.display(),
            self.word(),
        )
    }
}

/// An index below `count`, which isn't 0.
pub(super) fn pick(random: &mut ChaCha8Rng, count: usize) -> usize {
    let count = u64::try_from(count).unwrap_or(u64::MAX);
    usize::try_from(random.next_u64() % count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_the_kinds_are_a_hundred() {
        assert_eq!(SHARES.iter().map(|(_, share)| share).sum::<u64>(), 100);
    }
}
