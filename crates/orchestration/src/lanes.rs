//! Maps by lane (kind of accelerator in a pool of nodes), of which a cluster has few.
//!
//! A lane is two names, and a pass asks for what it keeps of one thousands of times: so a lane is found by the names
//! that a gang or a node has already, without building a key, and what is kept of each is ordered by numbers alone.
//! Invariant: lanes are in order, and one of which nothing is kept isn't there, so equal contents are equal maps.

use gangline_base::{AcceleratorKind, GangShape, Lane, PoolName};

use crate::NodeCapacity;

/// What is of one lane.
pub(crate) trait OfLane {
    /// The names of its lane.
    fn names(&self) -> (&AcceleratorKind, &PoolName);
}

impl OfLane for Lane {
    #[inline]
    fn names(&self) -> (&AcceleratorKind, &PoolName) {
        (&self.accelerator, &self.pool)
    }
}

impl OfLane for GangShape {
    #[inline]
    fn names(&self) -> (&AcceleratorKind, &PoolName) {
        (&self.accelerator, &self.pool)
    }
}

impl OfLane for NodeCapacity {
    #[inline]
    fn names(&self) -> (&AcceleratorKind, &PoolName) {
        (&self.accelerator, &self.pool)
    }
}

/// Something for each lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ByLane<T>(Vec<(Lane, T)>);

impl<T> Default for ByLane<T> {
    fn default() -> Self {
        ByLane(Vec::new())
    }
}

impl<T> ByLane<T> {
    /// What is kept of a lane.
    pub(crate) fn get(&self, lane: &impl OfLane) -> Option<&T> {
        let names = lane.names();
        self.0.iter().find(|(lane, _)| lane.names() == names).map(|(_, kept)| kept)
    }

    /// The same, to change; it must not become nothing.
    pub(crate) fn get_or_default(&mut self, lane: &impl OfLane) -> &mut T
    where
        T: Default,
    {
        let at = self.place(lane);
        &mut self.0[at].1
    }

    /// Changes what is kept of a lane; nothing, at first.
    pub(crate) fn change<R>(&mut self, lane: &impl OfLane, change: impl FnOnce(&mut T) -> R) -> R
    where
        T: Default + PartialEq,
    {
        let at = self.place(lane);
        let result = change(&mut self.0[at].1);
        if self.0[at].1 == T::default() {
            self.0.remove(at);
        }
        result
    }

    /// Where a lane is, if need be from now on.
    fn place(&mut self, lane: &impl OfLane) -> usize
    where
        T: Default,
    {
        let names = lane.names();
        if let Some(at) = self.0.iter().position(|(lane, _)| lane.names() == names) {
            return at;
        }
        let at = self.0.partition_point(|(lane, _)| lane.names() < names);
        let lane = Lane { accelerator: names.0.clone(), pool: names.1.clone() };
        self.0.insert(at, (lane, T::default()));
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_told_apart_and_one_with_nothing_is_not_kept() {
        let lane = |kind: &str, pool: &str| Lane {
            accelerator: AcceleratorKind(kind.to_owned()),
            pool: PoolName::new(pool).expect("this is a name"),
        };
        let names = [lane("H100", "training"), lane("A100", "training"), lane("H100", "serving")];
        let (mut forwards, mut backwards) = (ByLane::<Vec<usize>>::default(), ByLane::<Vec<usize>>::default());
        for (number, lane) in names.iter().enumerate() {
            forwards.change(lane, |numbers| numbers.push(number));
        }
        for (number, lane) in names.iter().enumerate().rev() {
            backwards.change(lane, |numbers| numbers.push(number));
        }
        assert_eq!(forwards, backwards);
        assert_eq!(forwards.get(&names[2]), Some(&vec![2]));
        forwards.change(&names[2], Vec::clear);
        assert_eq!((forwards.get(&names[2]), forwards.get(&names[0])), (None, Some(&vec![0])));
        assert_ne!(forwards, backwards);
    }
}
