//! Packs of erasure-coded pools that are mostly dead.

use super::coded::{content_of, memory};
use super::*;

/// Small objects that share packs: ten fill one.
const OBJECTS: usize = 40;
const BYTES: usize = 9000;

fn key(n: usize) -> String {
    format!("k{n:03}")
}

async fn content(gateway: &Gateway<Memory>, key: &str) -> Vec<u8> {
    content_in(gateway, "b", key).await
}

async fn put_all(gateway: &Gateway<Memory>) {
    for n in 0..OBJECTS {
        put(gateway, &key(n), content_of(BYTES + n), Condition::Any).await.unwrap();
    }
    // Packs are closed.
    tokio::time::sleep(Duration::from_secs(600)).await;
}

async fn named(gateway: &Gateway<Memory>, keys: impl Iterator<Item = usize>) -> BTreeSet<ObjectId> {
    named_in(gateway, "b", keys.map(key)).await
}

#[tokio::test(start_paused = true)]
async fn what_is_left_in_a_pack_that_is_mostly_dead_moves_and_the_pack_is_freed() {
    let backend = Arc::new(memory());
    let mut tasks = JoinSet::new();
    let gateway = gateway(&backend, &mut tasks).await;
    put_all(&gateway).await;
    let mover = gateway.mover(u64::MAX);
    let before = named(&gateway, 0..OBJECTS).await;
    assert_eq!(mover.compact().await, Ok(0), "everything is alive");
    for n in (0..OBJECTS).filter(|n| n % 2 == 1) {
        delete(&gateway, &key(n)).await;
    }
    assert_eq!(mover.compact().await, Ok(0), "half of each is");
    for n in (0..OBJECTS).filter(|n| n % 2 == 0 && n % 10 != 0) {
        delete(&gateway, &key(n)).await;
    }
    let meta = gateway.names.object("b", &key(0)).await.unwrap();
    assert_eq!(mover.compact().await, Ok(4));
    assert_eq!(mover.compact().await, Ok(0), "what was moved stays");
    tokio::time::sleep(Duration::from_secs(600)).await;
    let now = named(&gateway, (0..OBJECTS).step_by(10)).await;
    assert_eq!(backend.objects(), now);
    assert!(now.is_disjoint(&before) && now.iter().all(|id| id.pool() == PoolId(1)), "{now:?}");
    for n in (0..OBJECTS).step_by(10) {
        assert!(content(&gateway, &key(n)).await == content_of(BYTES + n), "{n}");
    }
    let moved = gateway.names.object("b", &key(0)).await.unwrap();
    let extents = meta.extents.clone();
    assert_eq!(ObjectMeta { extents, ..moved }, meta, "nothing else about it changes");
}

#[tokio::test(start_paused = true)]
async fn several_gateways_compact_while_keys_are_replaced_and_deleted() {
    let backend = Arc::new(memory());
    let (mut tasks, mut others) = (JoinSet::new(), JoinSet::new());
    let gateway = gateway(&backend, &mut tasks).await;
    let other = Gateway::start(Arc::new(backend.another(2, u64::MAX)), keys(), &mut others);
    put_all(&gateway).await;
    for n in (0..OBJECTS).filter(|n| n % 5 != 0) {
        delete(&gateway, &key(n)).await;
    }
    let (one, two) = (gateway.mover(10_000), other.mover(10_000));
    let meanwhile = async {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        put(&gateway, &key(5), content_of(77), Condition::Any).await.unwrap();
        delete(&gateway, &key(10)).await;
        put(&gateway, &key(35), content_of(78), Condition::Any).await.unwrap();
    };
    let (by_one, by_two, ()) = tokio::join!(one.compact(), two.compact(), meanwhile);
    assert!(by_one.unwrap() + by_two.unwrap() >= 5);
    tokio::time::sleep(Duration::from_secs(600)).await;
    let left = || (0..OBJECTS).step_by(5).filter(|n| *n != 10);
    for n in left() {
        let expected = match n {
            5 => content_of(77),
            35 => content_of(78),
            n => content_of(BYTES + n),
        };
        assert!(content(&other, &key(n)).await == expected, "{n}");
    }
    assert_eq!(backend.objects(), named(&gateway, left()).await);
}

/// The gateway dies after each of its steps, and another cleans up what it left.
#[tokio::test(start_paused = true)]
async fn a_gateway_that_dies_while_it_compacts_loses_and_leaves_nothing() {
    let mut died = 0;
    for step in 0.. {
        let cluster = Arc::new(memory());
        let mut tasks = JoinSet::new();
        let gateway = gateway(&cluster, &mut tasks).await;
        put_all(&gateway).await;
        for n in 2..OBJECTS {
            delete(&gateway, &key(n)).await;
        }
        tasks.abort_all();
        let mortal = Arc::new(cluster.another(2, step));
        let mut tasks = JoinSet::new();
        let gateway = Gateway::start(mortal.clone(), keys(), &mut tasks);
        let mover = gateway.mover(u64::MAX);
        // A request to a cluster that is gone waits forever.
        let _ = tokio::time::timeout(Duration::from_secs(10), mover.compact()).await;
        tasks.abort_all();
        drop((mover, gateway));
        let heir = Arc::new(cluster.another(3, u64::MAX));
        let mut tasks = JoinSet::new();
        let gateway = Gateway::start(heir.clone(), keys(), &mut tasks);
        tokio::time::sleep(SILENCE + Duration::from_secs(40)).await;
        for n in 0..2 {
            assert!(content(&gateway, &key(n)).await == content_of(BYTES + n), "{n} after step {step}");
        }
        assert_eq!(heir.objects(), named(&gateway, 0..2).await, "after step {step}");
        if !mortal.is_cut_off() {
            break;
        }
        died += 1;
    }
    assert!(died >= 4, "{died} steps");
}
