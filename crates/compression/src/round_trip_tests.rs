//! Everything that is coded comes back bit for bit, and nothing that wasn't coded is taken for it.

use crate::{
    BLOCK_BYTES, BLOCK_OVERHEAD_MAX, Coder, Decoder, Effort, Element, Error, Source, Transform, decode_tensor,
    encode_tensor, inspect, layout,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

const EFFORTS: [Effort; 2] = [Effort::Inline, Effort::Tiering];

/// Bytes of a block's header before its list of planes.
const HEADER: usize = 16;

/// A number that is normally distributed, or nearly (Irwin and Hall: the sum of twelve uniform ones).
fn normal(draw: &mut ChaCha8Rng) -> f32 {
    let unit = |draw: &mut ChaCha8Rng| f32::from(u16::try_from(draw.next_u32() >> 16).unwrap()) / 65_536.0;
    (0..12).map(|_| unit(draw)).sum::<f32>() - 6.0
}

/// Weights as training leaves them: rows of different scales around zero.
fn weights(count: u32, seed: u64) -> Vec<f32> {
    let mut draw = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|i| normal(&mut draw) * 0.02 * f32::from(u8::try_from(1 + i / 384 % 5).unwrap())).collect()
}

/// The same some steps later: each has moved by about the same.
fn moved(weights: &[f32], by: f32) -> Vec<f32> {
    let mut draw = ChaCha8Rng::seed_from_u64(99);
    weights.iter().map(|weight| weight + normal(&mut draw) * by).collect()
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn bf16_bytes(values: &[f32]) -> Vec<u8> {
    let mut copy = Vec::new();
    crate::derive_bf16(&f32_bytes(values), crate::Rounding::NearestEven, &mut copy);
    copy
}

fn source<'a>(raw: &'a [u8], base: Option<&'a [u8]>) -> Source<'a> {
    Source { raw, base, columns: 0 }
}

fn coded(element: Element, effort: Effort, raw: &[u8], base: Option<&[u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    let summary = Coder::new(element, effort).encode(source(raw, base), &mut out).unwrap();
    assert_eq!(summary.coded_bytes, out.len());
    assert!(out.len() <= raw.len() + BLOCK_OVERHEAD_MAX);
    let header = inspect(&out).unwrap();
    assert_eq!((header.element, header.transform, header.raw_bytes), (element, summary.transform, raw.len()));
    out
}

fn assert_comes_back(element: Element, raw: &[u8], base: Option<&[u8]>) {
    for effort in EFFORTS {
        let out = coded(element, effort, raw, base);
        let mut back = vec![0xaa; raw.len()];
        Decoder::new().decode(&out, base, &mut back).unwrap();
        assert!(back == raw, "{element:?} at {effort:?}");
    }
}

fn part_saved(coded: usize, raw: usize) -> f64 {
    1.0 - f64::from(u32::try_from(coded).unwrap()) / f64::from(u32::try_from(raw).unwrap())
}

#[test]
fn every_length_of_every_type_comes_back() {
    let mut draw = ChaCha8Rng::seed_from_u64(1);
    let counts = || (0..20).chain([33, 64, 255, 4_097]);
    for (element, count) in Element::ALL.into_iter().flat_map(|element| counts().map(move |count| (element, count))) {
        let mut noise = vec![0; count * element.size()];
        draw.fill_bytes(&mut noise);
        let small: Vec<u8> = noise.iter().map(|byte| byte % 5).collect();
        let constant = vec![3; noise.len()];
        for raw in [&noise, &small, &constant] {
            let bases = [None, Some(&noise[..]), Some(&small), Some(&constant)];
            bases.into_iter().for_each(|base| assert_comes_back(element, raw, base));
        }
    }
}

#[test]
fn every_half_word_and_every_kind_of_float_comes_back() {
    let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let mut turned = halves.clone();
    turned.rotate_left(2_222);
    assert_comes_back(Element::Bf16, &halves, Some(&turned));
    assert_comes_back(Element::F16, &halves, Some(&turned));
    let singles: Vec<u8> = (0..=u16::MAX).flat_map(|high| (u32::from(high) << 16 | 0x8001).to_le_bytes()).collect();
    assert_comes_back(Element::F32, &singles, Some(&vec![0; singles.len()]));
}

#[test]
fn weights_shrink_by_what_their_exponents_have_to_spare() {
    let weights = weights(300_000, 2);
    let check = |element, raw: &[u8], effort, at_least: f64| {
        let saved = part_saved(coded(element, effort, raw, None).len(), raw.len());
        assert!(saved > at_least, "{element:?} at {effort:?} saved {saved}");
    };
    check(Element::Bf16, &bf16_bytes(&weights), Effort::Inline, 0.32);
    check(Element::Bf16, &bf16_bytes(&weights), Effort::Tiering, 0.325);
    check(Element::F32, &f32_bytes(&weights)[..BLOCK_BYTES], Effort::Inline, 0.16);
    check(Element::F32, &f32_bytes(&weights)[..BLOCK_BYTES], Effort::Tiering, 0.165);
    assert_comes_back(Element::Bf16, &bf16_bytes(&weights), None);
}

#[test]
fn a_base_is_used_where_it_pays_and_left_alone_where_it_does_not() {
    let before = weights(200_000, 3);
    let after = moved(&before, 1e-4);
    for (element, before, after) in [
        (Element::Bf16, bf16_bytes(&before), bf16_bytes(&after)),
        (Element::F32, f32_bytes(&before), f32_bytes(&after)),
    ] {
        assert_comes_back(element, &after, Some(&before));
        let alone = coded(element, Effort::Tiering, &after, None).len();
        let inline = coded(element, Effort::Inline, &after, Some(&before));
        let tiering = coded(element, Effort::Tiering, &after, Some(&before));
        assert_eq!(inspect(&inline).unwrap().transform, Transform::Difference);
        assert_eq!(inspect(&tiering).unwrap().transform, Transform::Difference);
        assert!(tiering.len() < inline.len() && inline.len() * 10 < alone * 9, "{element:?}");
        let unrelated = f32_bytes(&weights(200_000, 4));
        let kept = coded(element, Effort::Tiering, &after, Some(&unrelated[..after.len()]));
        assert_eq!(inspect(&kept).unwrap().transform, Transform::Plain, "{element:?}");
        assert!(coded(element, Effort::Tiering, &after, Some(&after)).len() < 100);
    }
}

/// Like Adam's moments: noise, with a factor for each row and one for each column.
fn moments(rows: u16, columns: u16) -> Vec<u8> {
    let mut draw = ChaCha8Rng::seed_from_u64(11);
    let factor = |i: u16, many: u16| f32::from(i * 37 % many).exp2();
    let place = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
    f32_bytes(
        &place.map(|(row, column)| normal(&mut draw) * factor(row, 5) * factor(column, 11) * 1e-6).collect::<Vec<_>>(),
    )
}

fn coded_matrix(raw: &[u8], columns: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let source = Source { raw, base: None, columns };
    Coder::new(Element::F32, Effort::Tiering).encode(source, &mut out).unwrap();
    let mut back = vec![0; raw.len()];
    Decoder::new().decode(&out, None, &mut back).unwrap();
    assert!(back == raw, "{columns} columns");
    out
}

#[test]
fn a_matrix_is_told_by_its_neighbours_if_it_is_known_where_a_row_ends() {
    let raw = moments(300, 200);
    let right = coded_matrix(&raw, 200).len();
    for columns in [0, 1, 199, 60_000, (1 << 61) + 1] {
        assert!(right * 100 < coded_matrix(&raw, columns).len() * 97, "{columns} columns");
    }
}

#[test]
fn what_has_no_structure_is_kept_as_it_is() {
    let mut noise = vec![0; BLOCK_BYTES];
    ChaCha8Rng::seed_from_u64(5).fill_bytes(&mut noise);
    for element in Element::ALL {
        for effort in EFFORTS {
            let out = coded(element, effort, &noise, None);
            assert_eq!(out.len(), noise.len() + 16 + 4 * element.size());
        }
    }
}

#[test]
fn the_callers_mistakes_are_refused_and_append_nothing() {
    let mut out = vec![1];
    let mut coder = Coder::new(Element::F32, Effort::Inline);
    let ragged = coder.encode(source(&[0; 7], None), &mut out).unwrap_err();
    assert_eq!(ragged, Error::Ragged { element: Element::F32, bytes: 7 });
    let base = coder.encode(source(&[0; 8], Some(&[0; 4])), &mut out).unwrap_err();
    assert_eq!(base, Error::BaseLength { bytes: 8, base: 4 });
    let long = coder.encode(source(&vec![0; BLOCK_BYTES + 4], None), &mut out).unwrap_err();
    assert_eq!(long, Error::BlockTooLong { bytes: BLOCK_BYTES + 4, max: BLOCK_BYTES });
    assert!(encode_tensor(&mut coder, source(&[0; 9], None), &mut out).is_err());
    assert!(encode_tensor(&mut coder, source(&[0; 8], Some(&[])), &mut out).is_err());
    assert_eq!(out, [1]);
}

#[test]
fn a_difference_needs_its_base_and_no_other() {
    let before = f32_bytes(&weights(5_000, 6));
    let mut after = before.clone();
    after[0] ^= 1;
    let out = coded(Element::F32, Effort::Tiering, &after, Some(&before));
    let mut back = vec![0; after.len()];
    let mut decode = |base: Option<&[u8]>| Decoder::new().decode(&out, base, &mut back);
    assert_eq!(decode(None), Err(Error::BaseMissing));
    assert_eq!(decode(Some(&before[4..])), Err(Error::BaseLength { bytes: before.len(), base: before.len() - 4 }));
    assert_eq!(decode(Some(&after)), Err(Error::Checksum));
    assert_eq!(decode(Some(&before)), Ok(()));
    assert_eq!(
        Decoder::new().decode(&out, Some(&before), &mut [0; 8]),
        Err(Error::Length { expected: 8, found: before.len() as u64 })
    );
}

/// Blocks of every method and transform, with their bases.
fn blocks() -> Vec<(Vec<u8>, Vec<u8>, usize)> {
    let before = weights(400, 7);
    let after = moved(&before, 1e-4);
    let pairs = [
        (Element::Bf16, bf16_bytes(&before), bf16_bytes(&after)),
        (Element::F32, f32_bytes(&before), f32_bytes(&after)),
        (Element::Word32, f32_bytes(&before), f32_bytes(&after)),
        (Element::Word64, f32_bytes(&before), f32_bytes(&after)),
    ];
    let both = pairs.iter().flat_map(|pair| EFFORTS.map(|effort| (effort, pair)));
    let coded = |(effort, (element, before, after)): (Effort, &(Element, Vec<u8>, Vec<u8>))| {
        [None, Some(&before[..])].map(|base| (coded(*element, effort, after, base), before.clone(), after.len()))
    };
    let matrix = moments(20, 40);
    both.flat_map(coded).chain([(coded_matrix(&matrix, 40), Vec::new(), matrix.len())]).collect()
}

#[test]
fn no_flipped_byte_changes_what_comes_back_and_none_is_met_with_panic() {
    for (out, base, raw_bytes) in blocks() {
        let mut back = vec![0; raw_bytes];
        let mut decoder = Decoder::new();
        decoder.decode(&out, Some(&base), &mut back).unwrap();
        let whole = back.clone();
        for (place, change) in (0..out.len()).flat_map(|place| [(place, 0xff), (place, 1 << (place % 8))]) {
            let mut flipped = out.clone();
            flipped[place] ^= change;
            let result = decoder.decode(&flipped, Some(&base), &mut back);
            // Bits that fill up the last byte of a stream, or of a table, say nothing.
            assert!(result.is_err() || (place >= HEADER && back == whole), "byte {place} of {}", out.len());
        }
    }
}

#[test]
fn nothing_cut_short_or_lengthened_is_taken() {
    for (out, base, raw_bytes) in blocks() {
        let mut back = vec![0; raw_bytes];
        for end in 0..out.len() {
            assert!(Decoder::new().decode(&out[..end], Some(&base), &mut back).is_err(), "{end}");
        }
        let longer = [&out[..], &[0]].concat();
        assert!(Decoder::new().decode(&longer, Some(&base), &mut back).is_err());
    }
}

/// Proves A-10: what is decoded fits in the room that the caller made, whatever the bytes promise.
#[test]
fn bytes_that_were_never_coded_are_refused_whatever_they_are() {
    let mut draw = ChaCha8Rng::seed_from_u64(8);
    let blocks = blocks();
    let mut decoder = Decoder::new();
    for round in 0..2_000_usize {
        let (out, base, raw_bytes) = &blocks[round % blocks.len()];
        let mut damaged = out.clone();
        // The header stays, so that the damage reaches the coders behind it.
        let begin = if round % 3 == 0 { 0 } else { HEADER };
        for _ in 0..1 + round % 9 {
            let place = begin + usize::try_from(draw.next_u32()).unwrap() % (damaged.len() - begin);
            damaged[place] = draw.next_u32().to_le_bytes()[0];
        }
        let mut back = vec![0; *raw_bytes];
        let is_refused = decoder.decode(&damaged, Some(base), &mut back).is_err();
        let mut whole = vec![0; *raw_bytes];
        decoder.decode(out, Some(base), &mut whole).unwrap();
        assert!(is_refused || back == whole, "round {round}");
    }
}

#[test]
fn a_tensor_of_many_blocks_comes_back_whole_and_by_parts() {
    let before = f32_bytes(&weights(700_000, 9));
    let after = f32_bytes(&moved(&weights(700_000, 9), 1e-5));
    let mut coder = Coder::new(Element::F32, Effort::Inline);
    let mut out = Vec::new();
    let summaries = encode_tensor(&mut coder, source(&after, Some(&before)), &mut out).unwrap();
    assert_eq!(summaries.len(), 3);
    let mut back = vec![0; after.len()];
    decode_tensor(&mut Decoder::new(), &out, Some(&before), &mut back).unwrap();
    assert!(back == after);
    let layout = layout(&out, after.len()).unwrap();
    assert_eq!(layout.raw_bytes(), after.len());
    let (raw, lies) = layout.blocks().nth(1).unwrap();
    let mut part = vec![0; raw.len()];
    Decoder::new().decode(&out[lies], Some(&before[raw.clone()]), &mut part).unwrap();
    assert!(part == after[raw]);
}

#[test]
fn a_tensor_index_that_lies_is_refused() {
    let raw = f32_bytes(&weights(300_000, 10));
    let mut out = Vec::new();
    encode_tensor(&mut Coder::new(Element::F32, Effort::Inline), source(&raw, None), &mut out).unwrap();
    let check = |out: &[u8], raw_bytes: usize| layout(out, raw_bytes).unwrap_err();
    assert_eq!(check(&out, 4), Error::Length { expected: 4, found: 1_200_000 });
    for end in [0, 3, 11, 15, 19, out.len() - 1] {
        assert!(matches!(check(&out[..end], raw.len()), Error::Malformed { .. }), "{end}");
    }
    for place in 0..20 {
        let mut lying = out.clone();
        lying[place] ^= 0x40;
        assert!(layout(&lying, raw.len()).is_err(), "{place}");
    }
    let mut newer = out.clone();
    newer[3] = 2;
    assert_eq!(check(&newer, raw.len()), Error::Version { found: 2, known: 1 });
    let mut back = vec![0; raw.len()];
    let base = decode_tensor(&mut Decoder::new(), &out, Some(&raw[4..]), &mut back);
    assert_eq!(base, Err(Error::BaseLength { bytes: raw.len(), base: raw.len() - 4 }));
}

/// What the fixtures code: it has to stay as it is.
fn of_old(scale: f32) -> Vec<f32> {
    let number = |i: u16| f32::from(i * 31 % 997) - 498.0 + f32::from(i % 7) * scale;
    (0..1_500).map(|i| number(i) / 5_000.0).collect()
}

/// The files were written when the format was made, by `Coder::encode` with these very arguments.
#[test]
fn blocks_of_version_one_stay_readable() {
    let check = |coded: &[u8], raw: &[u8], base: Option<&[u8]>| {
        let mut back = vec![0; raw.len()];
        assert_eq!(Decoder::new().decode(coded, base, &mut back), Ok(()));
        assert!(back == raw);
    };
    let (before, after) = (of_old(0.01), of_old(0.02));
    let integers: Vec<u8> = (0..700_u64).flat_map(|i| (i * i % 50).to_le_bytes()).collect();
    check(include_bytes!("../fixtures/v1-bf16-inline"), &bf16_bytes(&after), None);
    check(include_bytes!("../fixtures/v1-bf16-tiering"), &bf16_bytes(&after), Some(&bf16_bytes(&before)));
    check(include_bytes!("../fixtures/v1-f32-tiering"), &f32_bytes(&after), Some(&f32_bytes(&before)));
    check(include_bytes!("../fixtures/v1-word64-tiering"), &integers, None);
    // Here with 25 columns.
    let factors = |i: u16| (f32::from(i % 25 % 9) - f32::from(i / 25 % 5)).exp2() * f32::from(1 + i % 3) / 7.0;
    let matrix = f32_bytes(&(0..1_500).map(factors).collect::<Vec<_>>());
    check(include_bytes!("../fixtures/v1-f32-matrix-tiering"), &matrix, None);
}
