// Check the digest and the signature of a certificate of dphist, without dphist:
//
//     node certificate.js NAME.certificate.json [DATA]
//
// DATA is the released file. The text must be UTF-8, as dphist writes it.
const { createHash, createPublicKey, verify } = require("node:crypto");
const { readFileSync } = require("node:fs");

// RFC 8785: sorted keys, no spaces, numbers and texts as JSON.stringify writes them.
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`);
  return `{${members.join(",")}}`;
}

const sha256 = (data) => createHash("sha256").update(data).digest("hex");

const [certificate, data] = process.argv.slice(2);
const { self_sha256: seal, ...sealed } = JSON.parse(readFileSync(certificate, "utf8"));
const { signature, ...signed } = sealed;

const results = { digest: sha256(canonical(sealed)) === seal };
if (data !== undefined) results.data = sha256(readFileSync(data)) === sealed.output.sha256;
if (signature !== undefined) {
  // The bytes before the 32 of the key say that it is an Ed25519 key.
  const key = Buffer.concat([Buffer.from("302a300506032b6570032100", "hex"), Buffer.from(signature.public_key, "base64")]);
  const bytes = Buffer.from(`dphist-certificate-v1\0${canonical(signed)}`);
  const publicKey = createPublicKey({ key, format: "der", type: "spki" });
  results.signature = verify(null, bytes, publicKey, Buffer.from(signature.value, "base64"));
  results.signed_by = `SHA256:${createHash("sha256").update(signature.public_key, "base64").digest("base64").replace(/=+$/, "")}`;
}
console.log(JSON.stringify(results));
process.exitCode = Object.values(results).includes(false) ? 1 : 0;
