//! Reads what `scontrol show` prints of Slurm's settings.

/// Returns the value of a line `Name = value` of the configuration; none if it isn't there.
pub(super) fn setting<'a>(config: &'a str, name: &str) -> Option<&'a str> {
    config.lines().find_map(|line| Some(line.strip_prefix(name)?.trim_start().strip_prefix('=')?.trim()))
}

/// Returns the value of a word `Name=value` of a line about a partition; none if it isn't there.
pub(super) fn word<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_scontrol_prints_them() {
        let config = "AccountingStorageEnforce = associations,limits,qos\nAccountingStorageEnforceX = 1\nClusterName             = private\n";
        assert_eq!(setting(config, "AccountingStorageEnforce"), Some("associations,limits,qos"));
        assert_eq!((setting(config, "ClusterName"), setting(config, "Cluster")), (Some("private"), None));
        let partition = "PartitionName=gpu MaxTime=1-00:00:00 MaxNodes=4";
        assert_eq!((word(partition, "MaxTime"), word(partition, "Max")), (Some("1-00:00:00"), None));
    }
}
