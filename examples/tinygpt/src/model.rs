//! The model: byte and position embeddings, pre-norm transformer blocks, a head tied to the embedding.
//!
//! Its parameters live in one flat vector, in the order of [`layout`]; that is what is averaged, optimized and saved.

use candle_core::{D, DType, Device, Result, Tensor, Var};

use crate::args::Args;
use crate::corpus::Batch;
use crate::random::normals;

/// A token is a byte.
const VOCABULARY: usize = 256;
/// The hidden layer of a block is so many times as wide as the model.
const EXPANSION: usize = 4;
const NORM_EPSILON: f64 = 1e-5;
/// Standard deviation of the first weights.
const DEVIATION: f64 = 0.02;
/// Added to the score of a byte that lies in the future.
const NEVER: f32 = -1e9;

/// A parameter's name, shape and beginning.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    start: Start,
}

/// What a parameter starts as.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Start {
    Zeros,
    Ones,
    Normal(f64),
}

impl Parameter {
    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The model's parameters, in the order of the flat vector.
pub(crate) fn layout(args: &Args) -> Vec<Parameter> {
    let (width, context) = (args.width as usize, args.context as usize);
    let hidden = width * EXPANSION;
    // Weights that write to the residual stream start smaller the more of them there are (GPT-2).
    let residual = Start::Normal(DEVIATION / (2.0 * f64::from(args.layers)).sqrt());
    let normal = Start::Normal(DEVIATION);
    let mut parameters = Vec::new();
    let mut add = |name: String, shape: &[usize], start| {
        parameters.push(Parameter { name, shape: shape.to_vec(), start });
    };
    add("embedding.byte".to_owned(), &[VOCABULARY, width], normal);
    add("embedding.position".to_owned(), &[context, width], normal);
    for layer in 0..args.layers {
        let name = |part: &str| format!("block.{layer}.{part}");
        add(name("norm_1.scale"), &[width], Start::Ones);
        add(name("norm_1.shift"), &[width], Start::Zeros);
        for part in ["query", "key", "value"] {
            add(name(&format!("attention.{part}")), &[width, width], normal);
        }
        add(name("attention.out"), &[width, width], residual);
        add(name("norm_2.scale"), &[width], Start::Ones);
        add(name("norm_2.shift"), &[width], Start::Zeros);
        add(name("hidden.weight"), &[width, hidden], normal);
        add(name("hidden.bias"), &[hidden], Start::Zeros);
        add(name("out.weight"), &[hidden, width], residual);
        add(name("out.bias"), &[width], Start::Zeros);
    }
    add("norm.scale".to_owned(), &[width], Start::Ones);
    add("norm.shift".to_owned(), &[width], Start::Zeros);
    parameters
}

/// The first parameters of a seed.
pub(crate) fn first_parameters(layout: &[Parameter], seed: u64) -> Vec<f32> {
    let values = |(purpose, parameter): (u64, &Parameter)| match parameter.start {
        Start::Zeros => vec![0.0; parameter.len()],
        Start::Ones => vec![1.0; parameter.len()],
        Start::Normal(deviation) => normals(seed, purpose, parameter.len(), deviation),
    };
    (1000..).zip(layout).flat_map(values).collect()
}

/// The model with the parameters of one step.
pub(crate) struct Model {
    variables: Vec<Var>,
    mask: Tensor,
    context: usize,
    layers: usize,
    heads: usize,
}

/// Hands out the variables in the order of the layout.
struct Reader<'a>(std::slice::Iter<'a, Var>);

impl<'a> Reader<'a> {
    fn next(&mut self) -> &'a Tensor {
        self.0.next().expect("the forward pass reads what the layout declares").as_tensor()
    }
}

impl Model {
    pub(crate) fn new(args: &Args, layout: &[Parameter], flat: &[f32]) -> Result<Self> {
        let context = args.context as usize;
        let mut rest = flat;
        let mut variables = Vec::with_capacity(layout.len());
        for parameter in layout {
            let (values, others) = rest.split_at(parameter.len());
            rest = others;
            variables.push(Var::from_tensor(&Tensor::from_slice(values, parameter.shape.as_slice(), &Device::Cpu)?)?);
        }
        let future = |row: usize| (0..context).map(move |column| if column > row { NEVER } else { 0.0 });
        let mask: Vec<f32> = (0..context).flat_map(future).collect();
        Ok(Model {
            variables,
            mask: Tensor::from_vec(mask, (context, context), &Device::Cpu)?,
            context,
            layers: args.layers as usize,
            heads: args.heads as usize,
        })
    }

    /// Takes over new parameters.
    pub(crate) fn set(&self, flat: &[f32]) -> Result<()> {
        let mut rest = flat;
        for variable in &self.variables {
            let (values, others) = rest.split_at(variable.elem_count());
            rest = others;
            variable.set(&Tensor::from_slice(values, variable.shape(), &Device::Cpu)?)?;
        }
        Ok(())
    }

    /// The mean loss of a batch in nats for each byte.
    pub(crate) fn loss(&self, batch: &Batch) -> Result<f32> {
        self.forward(batch)?.to_scalar()
    }

    /// The mean loss of a batch, and its gradient as a flat vector.
    pub(crate) fn loss_and_gradients(&self, batch: &Batch) -> Result<(f32, Vec<f32>)> {
        let loss = self.forward(batch)?;
        let gradients = loss.backward()?;
        let mut flat = Vec::new();
        for variable in &self.variables {
            match gradients.get(variable) {
                Some(gradient) => flat.extend(gradient.flatten_all()?.to_vec1::<f32>()?),
                None => flat.resize(flat.len() + variable.elem_count(), 0.0),
            }
        }
        Ok((loss.to_scalar()?, flat))
    }

    fn forward(&self, batch: &Batch) -> Result<Tensor> {
        let rows = batch.rows * self.context;
        let inputs = Tensor::from_slice(&batch.inputs, rows, &Device::Cpu)?;
        let targets = Tensor::from_slice(&batch.targets, (rows, 1), &Device::Cpu)?;
        let mut reader = Reader(self.variables.iter());
        let (bytes, positions) = (reader.next(), reader.next());
        let width = bytes.dim(1)?;
        let mut x = bytes
            .index_select(&inputs, 0)?
            .reshape((batch.rows, self.context, width))?
            .broadcast_add(positions)?
            .reshape((rows, width))?;
        for _ in 0..self.layers {
            let normed = norm(&x, &mut reader)?;
            x = (x + self.attention(&normed, &mut reader)?)?;
            let normed = norm(&x, &mut reader)?;
            let hidden = normed.matmul(reader.next())?.broadcast_add(reader.next())?;
            x = (x + gelu(&hidden)?.matmul(reader.next())?.broadcast_add(reader.next())?)?;
        }
        let logits = norm(&x, &mut reader)?.matmul(&bytes.t()?)?;
        cross_entropy(&logits, &targets)
    }

    fn attention(&self, x: &Tensor, reader: &mut Reader<'_>) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let head_width = width / self.heads;
        let mut project = || -> Result<Tensor> {
            let split = (rows / self.context, self.context, self.heads, head_width);
            x.matmul(reader.next())?.reshape(split)?.transpose(1, 2)?.contiguous()
        };
        let (query, key, value) = (project()?, project()?, project()?);
        let scores = (query.matmul(&key.t()?)? / (head_width as f64).sqrt())?.broadcast_add(&self.mask)?;
        let mixed = softmax(&scores)?.matmul(&value)?;
        mixed.transpose(1, 2)?.reshape((rows, width))?.matmul(reader.next())
    }
}

fn norm(x: &Tensor, reader: &mut Reader<'_>) -> Result<Tensor> {
    let (scale, shift) = (reader.next(), reader.next());
    let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    let variance = centred.sqr()?.mean_keepdim(D::Minus1)?;
    centred.broadcast_div(&(variance + NORM_EPSILON)?.sqrt()?)?.broadcast_mul(scale)?.broadcast_add(shift)
}

/// GELU by its sigmoid approximation: candle's own takes two powers to go backward, a third of a step's time.
fn gelu(x: &Tensor) -> Result<Tensor> {
    (x * 1.702)?.silu()? / 1.702
}

fn softmax(scores: &Tensor) -> Result<Tensor> {
    let highest = scores.max_keepdim(D::Minus1)?.detach();
    let exponentials = scores.broadcast_sub(&highest)?.exp()?;
    exponentials.broadcast_div(&exponentials.sum_keepdim(D::Minus1)?)
}

fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let highest = logits.max_keepdim(D::Minus1)?.detach();
    let shifted = logits.broadcast_sub(&highest)?;
    let normalizer = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
    (normalizer - shifted.gather(targets, 1)?)?.mean_all()?.to_dtype(DType::F32)
}
