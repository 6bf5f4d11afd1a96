//! A value as it is encoded. There is one per key, and most are never looked at: encoded, an object's entry takes a third of
//! what its parts take, and one allocation.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::marker::PhantomData;

pub struct Packed<T> {
    bytes: Box<[u8]>,
    of: PhantomData<T>,
}

impl<T: Serialize + DeserializeOwned> Packed<T> {
    pub fn new(value: &T) -> Packed<T> {
        Packed { bytes: postcard::to_stdvec(value).expect("plain data").into(), of: PhantomData }
    }

    pub fn get(&self) -> T {
        postcard::from_bytes(&self.bytes).expect("what was encoded here, or checked when it came in")
    }
}

impl<T> Clone for Packed<T> {
    fn clone(&self) -> Packed<T> {
        Packed { bytes: self.bytes.clone(), of: PhantomData }
    }
}

impl<T> PartialEq for Packed<T> {
    fn eq(&self, other: &Packed<T>) -> bool {
        self.bytes == other.bytes
    }
}

impl<T> Eq for Packed<T> {}

impl<T: Serialize + DeserializeOwned + std::fmt::Debug> std::fmt::Debug for Packed<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

impl<T> Serialize for Packed<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.bytes)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Packed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Packed<T>, D::Error> {
        let bytes = <&[u8]>::deserialize(deserializer)?;
        postcard::from_bytes::<T>(bytes).map_err(serde::de::Error::custom)?;
        Ok(Packed { bytes: bytes.into(), of: PhantomData })
    }
}
