//! How a scenario says what joins a node's accelerators: `islands=0-1,2-3 sockets=0-3`, each a group of devices.

use gangline_base::DeviceLayout;

/// The layout of these groups, fastest links first.
pub(super) fn layout(islands: Option<&str>, sockets: Option<&str>) -> Result<DeviceLayout, String> {
    let tiers = islands.into_iter().chain(sockets).map(groups).collect::<Result<_, _>>()?;
    DeviceLayout::new(tiers).map_err(|error| error.to_string())
}

/// The group of each device, which have to be in order.
fn groups(text: &str) -> Result<Vec<u32>, String> {
    let mut groups = Vec::new();
    for (number, range) in (0..).zip(text.split(',')) {
        let wrong = || format!("\"{range}\" is not a range of devices such as {}-{}", groups.len(), groups.len() + 1);
        let (first, last) = range.split_once('-').ok_or_else(wrong)?;
        let (first, last): (usize, usize) = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
        if first != groups.len() || last < first {
            return Err(wrong());
        }
        groups.resize(last + 1, number);
    }
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_groups() {
        let expected = DeviceLayout::new(vec![vec![0, 0, 1, 2], vec![0, 0, 1, 1]]).expect("nested");
        assert_eq!(layout(Some("0-1,2-2,3-3"), Some("0-1,2-3")), Ok(expected));
        assert_eq!(layout(None, None), Ok(DeviceLayout::default()));
        for wrong in ["0", "1-2", "0-1,3-4", "0-1,1-2", "a-b"] {
            assert!(layout(Some(wrong), None).is_err(), "{wrong}");
        }
    }
}
