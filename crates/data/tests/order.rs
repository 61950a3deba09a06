//! A-16 at the crate's border: the batches of any number of ranks, stopped and resumed anywhere, are an undisturbed run's.

#![expect(clippy::unwrap_used, reason = "what these tests set up themselves is there")]

use std::num::NonZeroU32;

use gangline_data::order::{HeldOut, Megatron, Part, Shuffle, Stage};
use gangline_data::{Loader, Options, Room, STATE_BYTES_MAX, Source, State, TokenType, Width};

const LENGTH: u32 = 4;

fn nonzero(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap()
}

/// A source whose tokens are their own places.
fn source(tokens: u16, first: u16) -> Source {
    let bytes = (first..first + tokens).flat_map(u16::to_le_bytes).collect();
    Source::of_bytes("numbers", bytes, TokenType::Uint16).unwrap()
}

fn options(seed: u64, global_batch: u32) -> Options {
    Options {
        sequence_length: nonzero(LENGTH),
        global_batch: nonzero(global_batch),
        seed,
        shuffle: Shuffle::Blocks { block: nonzero(4), window: nonzero(5) },
        part: None,
        stages: Vec::new(),
        blend: Vec::new(),
        epochs: None,
        rank: 0,
        world_size: nonzero(1),
        threads: nonzero(1),
        packs_documents: false,
    }
}

/// Two sources whose weights change on the way.
fn mixed(options: &Options) -> Loader {
    let stages = [(0, vec![3, 1]), (50, vec![1, 2])].map(|(from, weights)| Stage { from, weights }).to_vec();
    Loader::new(vec![source(403, 0), source(90, 1_000)], Options { stages, ..options.clone() }).unwrap()
}

/// The next global batch of a whole gang: each rank's inputs and labels, in the ranks' order.
fn step(ranks: &mut [Loader]) -> (Vec<i64>, Vec<i64>) {
    let mut batch = (Vec::new(), Vec::new());
    for loader in ranks {
        let bytes = loader.rows().len() * LENGTH as usize * 8;
        let (mut inputs, mut labels) = (vec![0; bytes], vec![0; bytes]);
        loader
            .fill(&mut Room { width: Width::Int64, inputs: &mut inputs, labels: &mut labels, positions: &mut [] })
            .unwrap();
        let numbers =
            |bytes: &[u8]| bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect::<Vec<_>>();
        batch.0.extend(numbers(&inputs));
        batch.1.extend(numbers(&labels));
    }
    batch
}

fn gang(world_size: u32, options: &Options, state: Option<&State>) -> Vec<Loader> {
    let rank = |rank| {
        let mut loader = mixed(&Options { rank, world_size: nonzero(world_size), ..options.clone() });
        if let Some(state) = state {
            loader.restore(&State::from_json(&state.to_json()).unwrap()).unwrap();
        }
        loader
    };
    (0..world_size).map(rank).collect()
}

/// Proves A-16.
#[test]
fn all_worlds_and_any_stops_and_resizes_give_the_undisturbed_batches() {
    const STEPS: usize = 8;
    let mut compared = 0;
    for seed in 0..200_u64 {
        // Rarely a multiple of any of the worlds.
        let options = options(seed, 64 + u32::try_from(seed % 7).unwrap());
        let mut alone = gang(1, &options, None);
        let oracle: Vec<_> = (0..STEPS).map(|_| step(&mut alone)).collect();
        let mut state = None;
        for (number, expected) in oracle.iter().enumerate() {
            // A gang of another size for each step, killed and resumed from the last rank's state.
            let world_size = u32::try_from((seed + number as u64 * 23) % 64).unwrap() + 1;
            let mut ranks = gang(world_size, &options, state.as_ref());
            assert_eq!(&step(&mut ranks), expected, "seed {seed}, step {number}, {world_size} ranks");
            let states: Vec<State> = ranks.iter().map(Loader::state).collect();
            assert!(states.iter().all(|one| *one == states[0]) && states[0].to_json().len() <= STATE_BYTES_MAX);
            state = states.into_iter().next_back();
            compared += 1;
        }
    }
    assert_eq!(compared, 200 * STEPS);
}

#[test]
fn every_world_size_up_to_64_has_the_same_batches() {
    let options = options(3, 67);
    let mut alone = gang(1, &options, None);
    let oracle: Vec<_> = (0..3).map(|_| step(&mut alone)).collect();
    for world_size in 1..=64 {
        let mut ranks = gang(world_size, &options, None);
        for expected in &oracle {
            assert_eq!(&step(&mut ranks), expected, "{world_size} ranks");
        }
    }
}

#[test]
fn an_epoch_has_every_token_but_the_first_once_as_a_label_and_the_next_goes_on() {
    let samples = 402 / LENGTH;
    let options = Options { epochs: Some(1), ..options(5, 7) };
    let mut ranks = [Loader::new(vec![source(403, 0)], options).unwrap()];
    let mut labels = Vec::new();
    let (batches, left) = ranks[0].batches().unwrap();
    assert_eq!((batches, left), (u64::from(samples.div_ceil(7)), batches));
    for left in (0..batches).rev() {
        let (inputs, more) = step(&mut ranks);
        assert!(inputs.iter().zip(&more).all(|(input, label)| input + 1 == *label));
        labels.extend(more);
        let position = ranks[0].state().sample;
        let expected = if position < u64::from(samples) { (batches, left) } else { (14, 14) };
        assert_eq!(ranks[0].batches(), Some(expected));
    }
    labels.truncate((samples * LENGTH) as usize);
    labels.sort_unstable();
    assert_eq!(labels, (1..=i64::from(samples * LENGTH)).collect::<Vec<_>>());
    assert!(
        ranks[0].samples().iter().any(|sample| sample.epoch == 1),
        "the last batch is filled up with the next epoch"
    );
}

#[test]
fn what_is_held_out_is_never_trained_on() {
    let rule = HeldOut { one_in: nonzero(5), group: nonzero(3) };
    let read = |part| {
        let options = Options { part: Some((part, rule)), ..options(9, 10) };
        let mut ranks = [Loader::new(vec![source(403, 0)], options).unwrap()];
        let count = ranks[0].samples_of(0);
        let mut numbers = Vec::new();
        while numbers.len() < usize::try_from(count).unwrap() {
            step(&mut ranks);
            numbers.extend(ranks[0].samples().iter().map(|sample| sample.number));
        }
        numbers.truncate(usize::try_from(count).unwrap());
        numbers.sort_unstable();
        numbers
    };
    let (training, held_out) = (read(Part::Training), read(Part::HeldOut));
    assert_eq!(held_out[..6], [12, 13, 14, 27, 28, 29]);
    let mut all = [training, held_out].concat();
    all.sort_unstable();
    assert_eq!(all, (0..100).collect::<Vec<_>>());
}

#[test]
fn skipped_batches_are_left_out_and_steps_go_on_counting() {
    let options = options(1, 6);
    let (mut whole, mut skipping) = (gang(1, &options, None), gang(1, &options, None));
    let batches: Vec<_> = (0..6).map(|_| step(&mut whole)).collect();
    assert_eq!(step(&mut skipping), batches[0]);
    skipping[0].skip(3);
    assert_eq!(step(&mut skipping), batches[4]);
    assert_eq!((skipping[0].steps(), skipping[0].state().sample), (2, 30));
    let mut resumed = gang(2, &options, Some(&skipping[0].state()));
    assert_eq!(step(&mut resumed), batches[5]);
}

#[test]
fn a_batch_may_grow_at_a_resume_and_loses_nothing() {
    let mut small = gang(1, &options(1, 4), None);
    let mut all = step(&mut small).0;
    let mut large = gang(3, &options(1, 8), Some(&small[0].state()));
    all.extend(step(&mut large).0);
    let mut oracle = gang(1, &options(1, 12), None);
    assert_eq!(step(&mut oracle).0, all);
}

#[test]
fn threads_fill_the_same_batch() {
    let fill = |threads, labels: usize| {
        let mut loader = mixed(&Options { threads: nonzero(threads), ..options(2, 101) });
        let bytes = 101 * LENGTH as usize * 4;
        let (mut inputs, mut labels) = (vec![0; bytes], vec![0; labels * bytes]);
        loader
            .fill(&mut Room { width: Width::Int32, inputs: &mut inputs, labels: &mut labels, positions: &mut [] })
            .unwrap();
        (inputs, labels)
    };
    for threads in 2..9 {
        assert!(fill(threads, 1) == fill(1, 1) && fill(threads, 0) == fill(1, 0), "{threads} threads");
    }
}

#[test]
fn a_state_of_other_data_or_another_order_is_refused_with_what_differs() {
    let mut loader = mixed(&options(1, 8));
    step(std::slice::from_mut(&mut loader));
    let state = loader.state();
    let check = |mut other: Loader, expected: &str| {
        let error = other.restore(&state).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(other.state().sample, 0, "nothing is changed");
    };
    check(mixed(&options(2, 8)), "of another order: use its seed");
    check(mixed(&Options { shuffle: Shuffle::Global, ..options(1, 8) }), "of another order");
    check(mixed(&Options { sequence_length: nonzero(5), ..options(1, 8) }), "samples have 4 tokens, and these 5");
    check(Loader::new(vec![source(403, 0), source(91, 1_000)], options(1, 8)).unwrap(), "of other data");
    let refuse = |text: &str, expected: &str| {
        let error = State::from_json(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    refuse("{}", "resume the data: no state of a loader");
    refuse(
        &state.to_json().replace("\"version\":1", "\"version\":2"),
        "version 2 of its state is unknown here; there is 1",
    );
    refuse(&" ".repeat(201), "a state of 201 bytes");
}

#[test]
fn later_weights_may_change_and_those_of_the_past_may_not() {
    let stages = |stages: &[(u64, [u64; 2])]| {
        let stages = stages.iter().map(|(from, weights)| Stage { from: *from, weights: weights.to_vec() }).collect();
        Loader::new(vec![source(403, 0), source(90, 1_000)], Options { stages, ..options(1, 8) }).unwrap()
    };
    let mut loader = stages(&[(0, [1, 1])]);
    (0..4).for_each(|_| drop(step(std::slice::from_mut(&mut loader))));
    let state = loader.state();
    assert!(stages(&[(0, [1, 1]), (32, [1, 9])]).restore(&state).is_ok());
    assert!(stages(&[(0, [1, 1]), (31, [1, 9])]).restore(&state).is_err());
    assert!(stages(&[(0, [1, 2])]).restore(&state).is_err());
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let check = |sources: Vec<Source>, options: Options, expected: &str| {
        let error = Loader::new(sources, options).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let one = || vec![source(403, 0)];
    check(Vec::new(), options(1, 8), "use source: there is none");
    let ranks = Options { world_size: nonzero(9), ..options(1, 8) };
    check(one(), ranks, "use global_batch: 8 samples are fewer than 9 ranks");
    check(one(), Options { rank: 1, ..options(1, 8) }, "use rank: 1 isn't below 1");
    check(
        one(),
        Options { sequence_length: nonzero(403), ..options(1, 8) },
        "numbers has 403 tokens, too few for a sample of 403",
    );
    check(one(), Options { sequence_length: nonzero(u32::MAX), ..options(1, 8) }, "more than 16777216");
    check(one(), Options { threads: nonzero(65), ..options(1, 8) }, "use threads: 65 are more than 64");
    check(one(), Options { epochs: Some(0), ..options(1, 8) }, "use epochs: 0 passes");
    check(vec![source(403, 0), source(9, 0)], Options { epochs: Some(1), ..options(1, 8) }, "a mixture has no end");
    let bytes = Source::of_bytes("bytes", vec![0; 100], TokenType::Uint8).unwrap();
    check(vec![source(403, 0), bytes], options(1, 8), "bytes holds uint8, and numbers uint16");
    let weights = vec![Stage { from: 0, weights: vec![1, 2] }];
    check(one(), Options { stages: weights, ..options(1, 8) }, "stage 0 has 2 weights for 1 sources");
}

/// A checkpoint knows its order by these digits: what an option is called or how it is printed mustn't change them.
#[test]
fn orders_of_this_version_are_known_by_these_ids() {
    let one = |options: Options| Loader::new(vec![source(403, 0)], options).unwrap().state().order;
    let of = |shuffle| one(Options { shuffle, ..options(7, 8) });
    let held_out = HeldOut { one_in: nonzero(3), group: nonzero(2) };
    let megatron = Megatron { begin: 0.0, end: 0.5, samples: Some(20), surplus: 0.005 };
    let mut mixture = mixed(&options(7, 8));
    (0..9).for_each(|_| mixture.skip(1));
    let found = [
        of(Shuffle::None),
        of(Shuffle::Global),
        of(Shuffle::default()),
        one(Options { part: Some((Part::Training, held_out)), ..options(7, 8) }),
        mixture.state().order,
    ];
    assert_eq!(found, IDS);
    let documents = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/writers/megatron-uint16.bin");
    let blended = |blend: Vec<f64>| {
        let sources = (0..2).map(|_| Source::open(&documents, None).unwrap()).collect();
        let shuffle = Shuffle::Megatron(megatron);
        Loader::new(sources, Options { shuffle, blend, epochs: Some(1), ..options(7, 8) }).unwrap().state().order
    };
    assert_eq!([blended(Vec::new()), blended(vec![0.25, 0.75])], MEGATRON_IDS);
}

const IDS: [&str; 5] =
    ["9161f7cf47e6d118", "49ad1f337937b846", "f5532e24877ddaa0", "f84a2f784d8aa226", "0174f54f7917dc98"];
const MEGATRON_IDS: [&str; 2] = ["2d8297c930a6cc31", "371df370b8b34bf9"];
