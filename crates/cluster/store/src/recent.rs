//! A bounded cache that keeps what was used recently: two generations, so that there is no list to maintain. When the
//! young one is full it becomes the old one, and entries of the old one that were not used since are dropped.

use std::collections::HashMap;
use std::hash::Hash;

pub struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    half: usize,
}

impl<K: Hash + Eq + Clone, V: Clone> Recent<K, V> {
    /// Keeps at most `limit` values.
    pub fn new(limit: usize) -> Recent<K, V> {
        Recent { young: HashMap::new(), old: HashMap::new(), half: (limit / 2).max(1) }
    }

    pub fn get(&mut self, key: &K) -> Option<V> {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, value) = self.old.remove_entry(key)?;
        self.insert(key, value.clone());
        Some(value)
    }

    pub fn insert(&mut self, key: K, value: V) {
        self.old.remove(&key);
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
        debug_assert!(self.young.len() <= self.half && self.old.len() <= self.half, "it is bounded");
    }

    pub fn forget(&mut self, gone: impl Fn(&K) -> bool) {
        self.young.retain(|key, _| !gone(key));
        self.old.retain(|key, _| !gone(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_and_keeps_what_is_used() {
        let mut recent = Recent::new(8);
        for i in 0..1000 {
            recent.insert(i, i);
            assert_eq!(recent.get(&0), Some(0), "used all the time");
            assert!(recent.young.len() + recent.old.len() <= 8);
        }
        assert_eq!(recent.get(&500), None);
        recent.forget(|key| *key == 0);
        assert_eq!(recent.get(&0), None);
    }
}
