//! Volumes: who serves them, and where their slices are.
//!
//! One client at a time serves a volume. It gives signs of life, and one that has been silent for too long loses the
//! volume to another that asks for it. Only the server of a volume moves its slices, so a late command of a former one
//! changes nothing.

use super::leases::Leases;
use crate::api::{Planted, PlantedBug};
use ebb_types::{
    Extent, NamespaceError, ObjectId, VolumeHome, VolumeMeta, VolumeOwner, VolumeStatus, slice_extent,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Bound;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Volumes {
    by_name: BTreeMap<String, Volume>,
    /// The next claims have higher numbers than this.
    claims: u64,
    #[serde(skip)]
    pub(super) planted: Planted,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Volume {
    meta: VolumeMeta,
    owner: Option<VolumeOwner>,
    /// How often it changed hands, and where the owners noted that.
    claims: u64,
    noted: Option<Extent>,
    /// The slices that were moved, and the object of each.
    moved: BTreeMap<u32, ObjectId>,
}

impl Volume {
    fn status(&self) -> VolumeStatus {
        VolumeStatus { meta: self.meta.clone(), owner: self.owner, moved: self.moved.len() as u64 }
    }
}

impl Volumes {
    pub fn create(
        &mut self,
        name: &str,
        (size, object): (u64, ObjectId),
        home: Option<VolumeHome>,
        now: u64,
    ) -> Result<(), NamespaceError> {
        if self.by_name.contains_key(name) {
            return Err(NamespaceError::VolumeExists);
        }
        let meta = VolumeMeta { size, object, created_millis: now, home };
        let volume = Volume { meta, owner: None, claims: 0, noted: None, moved: BTreeMap::new() };
        self.by_name.insert(name.to_owned(), volume);
        Ok(())
    }

    /// Returns what loses its name.
    pub fn delete(&mut self, sender: u64, name: &str) -> Result<Vec<Extent>, NamespaceError> {
        let volume = self.get(name)?;
        if let Some(owner) = volume.owner.filter(|owner| owner.run != sender) {
            return Err(NamespaceError::VolumeInUse(owner));
        }
        let first = [Some(volume.meta.front()), volume.noted].into_iter().flatten().collect::<Vec<_>>();
        let volume = self.by_name.remove(name);
        let moved = volume.into_iter().flat_map(|volume| volume.moved.into_values()).map(slice_extent);
        Ok(first.into_iter().chain(moved).collect())
    }

    /// Returns the number of the claim: a new one for a new owner.
    pub fn claim(
        &mut self,
        sender: u64,
        name: &str,
        from: Option<VolumeOwner>,
        noted: Extent,
    ) -> Result<u64, NamespaceError> {
        let (least, shares) = (self.claims, self.planted.has(PlantedBug::SameClaim));
        let volume = self.get_mut(name)?;
        if noted.object != volume.meta.object {
            return Err(NamespaceError::NoSuchVolume);
        }
        let stamp = match volume.owner {
            Some(owner) if owner.run == sender || from == Some(owner) => owner.stamp + 1,
            Some(owner) => return Err(NamespaceError::VolumeInUse(owner)),
            None => 0,
        };
        if volume.owner.is_none_or(|owner| owner.run != sender && !shares) {
            volume.claims = volume.claims.max(least) + 1;
        }
        volume.owner = Some(VolumeOwner { run: sender, stamp });
        volume.noted = Some(noted);
        debug_assert!(volume.claims > 0, "zero is no claim (R16)");
        Ok(volume.claims)
    }

    /// Owners keep their claims, and every later one has a number that was never given.
    pub fn rescue(&mut self, jump: u64) {
        let highest = self.by_name.values().map(|volume| volume.claims).fold(self.claims, u64::max);
        self.claims = highest + jump;
        let owners = self.by_name.values_mut().filter_map(|volume| volume.owner.as_mut());
        owners.for_each(|owner| owner.stamp += jump);
    }

    pub fn release(&mut self, sender: u64, name: &str) -> Result<(), NamespaceError> {
        let volume = self.get_mut(name)?;
        volume.owner = volume.owner.filter(|owner| owner.run != sender);
        Ok(())
    }

    /// Returns what loses its name.
    pub fn move_slice(
        &mut self,
        leases: &mut Leases,
        (sender, claim): (u64, u64),
        (name, slice): (&str, u32),
        was: Option<ObjectId>,
        to: Option<ObjectId>,
    ) -> Result<Option<Extent>, NamespaceError> {
        let volume = self.get_mut(name)?;
        if volume.owner.is_none_or(|owner| owner.run != sender) || volume.claims != claim {
            return Err(NamespaceError::VolumeTaken);
        }
        let present = volume.moved.get(&slice).copied();
        if present == to {
            return Ok(None);
        }
        let inside = u64::from(slice) < volume.meta.slices();
        if present != was || !inside {
            return Err(NamespaceError::SliceMoved);
        }
        let named: Vec<Extent> = to.map(slice_extent).into_iter().collect();
        leases.check(sender, &named)?;
        leases.name(sender, &named);
        match to {
            Some(object) => volume.moved.insert(slice, object),
            None => volume.moved.remove(&slice),
        };
        debug_assert!(
            volume.moved.len() as u64 <= volume.meta.slices(),
            "only slices of the volume are moved"
        );
        Ok(was.map(slice_extent))
    }

    fn get(&self, name: &str) -> Result<&Volume, NamespaceError> {
        self.by_name.get(name).ok_or(NamespaceError::NoSuchVolume)
    }

    fn get_mut(&mut self, name: &str) -> Result<&mut Volume, NamespaceError> {
        self.by_name.get_mut(name).ok_or(NamespaceError::NoSuchVolume)
    }

    pub fn all(&self) -> Vec<(String, VolumeStatus)> {
        self.by_name.iter().map(|(name, volume)| (name.clone(), volume.status())).collect()
    }

    pub fn one(&self, name: &str) -> Result<VolumeStatus, NamespaceError> {
        Ok(self.get(name)?.status())
    }

    /// Up to `limit` moved slices after this one, and whether there are more.
    pub fn slices(
        &self,
        name: &str,
        after: Option<u32>,
        limit: usize,
    ) -> Result<(Vec<(u32, ObjectId)>, bool), NamespaceError> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self.get(name)?.moved.range((from, Bound::Unbounded));
        let slices = rest.by_ref().take(limit).map(|(slice, object)| (*slice, *object)).collect();
        Ok((slices, rest.next().is_some()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::PoolId;

    const ME: u64 = 7;
    const OTHER: u64 = 8;
    const FRONT: ObjectId = ObjectId(1);
    const NOTED: Extent = Extent { object: FRONT, offset: 1 << 40, len: 9, shared: false, crc: 0 };

    fn cold(serial: u64) -> ObjectId {
        ObjectId(serial).in_pool(PoolId(1))
    }

    fn world() -> (Volumes, Leases) {
        let (mut volumes, mut leases) = (Volumes::default(), Leases::default());
        let home = Some(VolumeHome { pool: PoolId(1), front_bytes: 1 << 20 });
        volumes.create("v", (4 << 20, FRONT), home, 5).unwrap();
        leases.lease(ME, cold(10), 4, 1 << 20).unwrap();
        leases.lease(OTHER, cold(20), 4, 1 << 20).unwrap();
        (volumes, leases)
    }

    #[test]
    fn one_client_serves_a_volume_until_it_releases_it_or_falls_silent() {
        let (mut volumes, _) = world();
        volumes.claim(ME, "v", None, NOTED).unwrap();
        let Err(NamespaceError::VolumeInUse(seen)) = volumes.claim(OTHER, "v", None, NOTED) else {
            panic!("it is in use");
        };
        volumes.claim(ME, "v", None, NOTED).unwrap();
        let again = volumes.claim(OTHER, "v", Some(seen), NOTED);
        assert_eq!(
            again,
            Err(NamespaceError::VolumeInUse(VolumeOwner { run: ME, stamp: 1 })),
            "it gave a sign of life"
        );
        assert!(matches!(volumes.delete(OTHER, "v"), Err(NamespaceError::VolumeInUse(_))));
        volumes.claim(OTHER, "v", Some(VolumeOwner { run: ME, stamp: 1 }), NOTED).unwrap();
        assert!(matches!(volumes.claim(ME, "v", None, NOTED), Err(NamespaceError::VolumeInUse(_))));
        volumes.release(ME, "v").unwrap();
        assert_eq!(
            volumes.one("v").unwrap().owner.map(|owner| owner.run),
            Some(OTHER),
            "not its own any more"
        );
        volumes.release(OTHER, "v").unwrap();
        assert_eq!(volumes.claim(ME, "v", None, NOTED), Ok(3), "each owner has a number of its own");
        assert_eq!(volumes.claim(ME, "v", None, NOTED), Ok(3));
    }

    #[test]
    fn only_the_server_of_a_volume_moves_its_slices_and_only_from_where_they_are() {
        let (mut volumes, mut leases) = world();
        let mut go = |volumes: &mut Volumes, sender, slice, was, to| {
            volumes.move_slice(&mut leases, (sender, 1), ("v", slice), was, to)
        };
        assert_eq!(go(&mut volumes, ME, 0, None, Some(cold(10))), Err(NamespaceError::VolumeTaken));
        volumes.claim(ME, "v", None, NOTED).unwrap();
        assert_eq!(go(&mut volumes, ME, 0, None, Some(cold(10))), Ok(None));
        assert_eq!(go(&mut volumes, ME, 0, None, Some(cold(10))), Ok(None), "a retry");
        assert_eq!(go(&mut volumes, ME, 0, None, Some(cold(11))), Err(NamespaceError::SliceMoved));
        assert_eq!(
            go(&mut volumes, ME, 4, None, Some(cold(11))),
            Err(NamespaceError::SliceMoved),
            "past the end"
        );
        assert_eq!(go(&mut volumes, ME, 3, None, Some(cold(20))), Err(NamespaceError::NotLeased));
        let old = Some(cold(10));
        assert_eq!(go(&mut volumes, ME, 0, old, Some(cold(11))), Ok(old.map(slice_extent)));
        assert_eq!(go(&mut volumes, ME, 3, None, Some(cold(12))), Ok(None));
        assert_eq!(volumes.slices("v", None, 1).unwrap(), (vec![(0, cold(11))], true));
        assert_eq!(volumes.slices("v", Some(0), 9).unwrap(), (vec![(3, cold(12))], false));
        assert_eq!(go(&mut volumes, ME, 0, Some(cold(11)), None), Ok(Some(slice_extent(cold(11)))));
        let dead: Vec<ObjectId> = volumes.delete(ME, "v").unwrap().iter().map(|e| e.object).collect();
        assert_eq!(dead, [FRONT, FRONT, cold(12)], "its bytes, its claims, its slices");
    }

    /// A server stood still with a slice read, another one served meanwhile and zeroed it, and the first one has the
    /// volume again.
    #[test]
    fn a_move_of_an_earlier_claim_is_refused_although_the_same_run_serves_again() {
        let (mut volumes, mut leases) = world();
        assert_eq!(volumes.claim(ME, "v", None, NOTED), Ok(1));
        volumes.claim(OTHER, "v", Some(VolumeOwner { run: ME, stamp: 0 }), NOTED).unwrap();
        volumes.release(OTHER, "v").unwrap();
        assert_eq!(volumes.claim(ME, "v", None, NOTED), Ok(3));
        let mut go = |claim| volumes.move_slice(&mut leases, (ME, claim), ("v", 0), None, Some(cold(10)));
        assert_eq!(go(1), Err(NamespaceError::VolumeTaken));
        assert_eq!(go(3), Ok(None));
    }
}
