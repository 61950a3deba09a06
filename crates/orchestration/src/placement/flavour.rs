//! Maps keyed by flavour (kind of accelerator in a pool of nodes). A cluster has few flavours.
//!
//! A flavour is two names, and a pass looks it up thousands of times. So lookups use the names in a gang or
//! node without building a key, and the values are ordered by numbers alone. Invariant: flavours are sorted,
//! and a flavour with an empty value is absent, so equal contents give equal maps.

use gangline_base::{AcceleratorKind, Flavour, GangShape, PoolName};

use crate::NodeCapacity;

/// Something that has a flavour.
pub(crate) trait OfFlavour {
    /// Returns the two names of its flavour.
    fn names(&self) -> (&AcceleratorKind, &PoolName);
}

impl OfFlavour for Flavour {
    #[inline]
    fn names(&self) -> (&AcceleratorKind, &PoolName) {
        (&self.accelerator, &self.pool)
    }
}

impl OfFlavour for GangShape {
    #[inline]
    fn names(&self) -> (&AcceleratorKind, &PoolName) {
        (&self.accelerator, &self.pool)
    }
}

impl OfFlavour for NodeCapacity {
    #[inline]
    fn names(&self) -> (&AcceleratorKind, &PoolName) {
        (&self.accelerator, &self.pool)
    }
}

/// A map from flavours to values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ByFlavour<T>(Vec<(Flavour, T)>);

impl<T> Default for ByFlavour<T> {
    fn default() -> Self {
        ByFlavour(Vec::new())
    }
}

impl<T> ByFlavour<T> {
    /// Returns the value of a flavour.
    pub(crate) fn get(&self, flavour: &impl OfFlavour) -> Option<&T> {
        let names = flavour.names();
        self.0.iter().find(|(flavour, _)| flavour.names() == names).map(|(_, kept)| kept)
    }

    /// Returns the value of a flavour for modification; it must not become empty.
    pub(crate) fn get_or_default(&mut self, flavour: &impl OfFlavour) -> &mut T
    where
        T: Default,
    {
        let at = self.place(flavour);
        &mut self.0[at].1
    }

    /// Changes the value of a flavour, which starts out empty.
    pub(crate) fn change<R>(&mut self, flavour: &impl OfFlavour, change: impl FnOnce(&mut T) -> R) -> R
    where
        T: Default + PartialEq,
    {
        let at = self.place(flavour);
        let result = change(&mut self.0[at].1);
        if self.0[at].1 == T::default() {
            self.0.remove(at);
        }
        result
    }

    /// Returns the index of a flavour, adding it if absent.
    fn place(&mut self, flavour: &impl OfFlavour) -> usize
    where
        T: Default,
    {
        let names = flavour.names();
        if let Some(at) = self.0.iter().position(|(flavour, _)| flavour.names() == names) {
            return at;
        }
        let at = self.0.partition_point(|(flavour, _)| flavour.names() < names);
        let flavour = Flavour { accelerator: names.0.clone(), pool: names.1.clone() };
        self.0.insert(at, (flavour, T::default()));
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_told_apart_and_one_with_nothing_is_not_kept() {
        let flavour = |kind: &str, pool: &str| Flavour {
            accelerator: AcceleratorKind(kind.to_owned()),
            pool: PoolName::new(pool).expect("this is a name"),
        };
        let names = [flavour("H100", "training"), flavour("A100", "training"), flavour("H100", "serving")];
        let (mut forwards, mut backwards) = (ByFlavour::<Vec<usize>>::default(), ByFlavour::<Vec<usize>>::default());
        for (number, flavour) in names.iter().enumerate() {
            forwards.change(flavour, |numbers| numbers.push(number));
        }
        for (number, flavour) in names.iter().enumerate().rev() {
            backwards.change(flavour, |numbers| numbers.push(number));
        }
        assert_eq!(forwards, backwards);
        assert_eq!(forwards.get(&names[2]), Some(&vec![2]));
        forwards.change(&names[2], Vec::clear);
        assert_eq!((forwards.get(&names[2]), forwards.get(&names[0])), (None, Some(&vec![0])));
        assert_ne!(forwards, backwards);
    }
}
