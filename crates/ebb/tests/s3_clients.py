#!/usr/bin/env python3
"""Real S3 clients (boto3, awscli, rclone, restic, s3cmd and others) against a gateway.

Takes the gateway from EBB_S3_ENDPOINT, EBB_S3_ACCESS_KEY and EBB_S3_SECRET_KEY. Makes buckets of its own and removes
them, so it may run against a cluster that holds data. Arguments are unittest's: names of tests to run, -v.
"""

import base64
import concurrent.futures
import datetime
import hashlib
import importlib
import inspect
import io
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.parse
import urllib.request
import uuid
import zlib

import boto3
import botocore.auth
import botocore.awsrequest
import botocore.config
import botocore.credentials
import botocore.exceptions

ENDPOINT = os.environ["EBB_S3_ENDPOINT"]
ACCESS_KEY = os.environ["EBB_S3_ACCESS_KEY"]
SECRET_KEY = os.environ["EBB_S3_SECRET_KEY"]
MIB = 1 << 20


def ask(url, method="GET", body=None, headers=None):
    """Status, body and headers of the answer to a request as it is."""
    request = urllib.request.Request(url, data=body, method=method, headers=headers or {})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers


def client(access=ACCESS_KEY, secret=SECRET_KEY, endpoint=ENDPOINT, **config):
    settings = {"signature_version": "s3v4", "s3": {"addressing_style": "path"}, "retries": {"max_attempts": 2}}
    settings["max_pool_connections"] = 32
    settings.update(config)
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        region_name="us-east-1",
        config=botocore.config.Config(**settings),
    )


def data(size, seed=1):
    return random.Random(seed).randbytes(size)


class S3Test(unittest.TestCase):
    """A fresh bucket per test, emptied and removed after it."""

    def setUp(self):
        self.s3 = client()
        self.bucket = "test-" + uuid.uuid4().hex[:16]
        self.s3.create_bucket(Bucket=self.bucket)

    def tearDown(self):
        for upload in self.s3.list_multipart_uploads(Bucket=self.bucket).get("Uploads", []):
            self.s3.abort_multipart_upload(Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket):
            keys = [{"Key": o["Key"]} for o in page.get("Contents", [])]
            if keys:
                self.s3.delete_objects(Bucket=self.bucket, Delete={"Objects": keys, "Quiet": True})
        self.s3.delete_bucket(Bucket=self.bucket)

    def put(self, key, body=b"x", **more):
        return self.s3.put_object(Bucket=self.bucket, Key=key, Body=body, **more)

    def get(self, key, **more):
        return self.s3.get_object(Bucket=self.bucket, Key=key, **more)

    def body(self, key, **more):
        return self.get(key, **more)["Body"].read()

    def refused(self, code, call, *args, **kwargs):
        with self.assertRaises(botocore.exceptions.ClientError) as caught:
            call(*args, **kwargs)
        error = caught.exception.response
        if isinstance(code, int):
            self.assertEqual(error["ResponseMetadata"]["HTTPStatusCode"], code, error)
        else:
            self.assertEqual(error["Error"]["Code"], code, error)
        return error


class Buckets(S3Test):
    def test_life_of_a_bucket(self):
        names = [b["Name"] for b in self.s3.list_buckets()["Buckets"]]
        self.assertIn(self.bucket, names)
        self.s3.head_bucket(Bucket=self.bucket)
        self.refused("BucketAlreadyOwnedByYou", self.s3.create_bucket, Bucket=self.bucket)
        self.put("key")
        self.refused("BucketNotEmpty", self.s3.delete_bucket, Bucket=self.bucket)
        self.refused(404, self.s3.head_bucket, Bucket=self.bucket + "-no")
        self.refused("NoSuchBucket", self.s3.put_object, Bucket=self.bucket + "-no", Key="k", Body=b"")
        self.refused("NoSuchBucket", self.s3.list_objects_v2, Bucket=self.bucket + "-no")
        self.refused("NoSuchBucket", self.s3.delete_bucket, Bucket=self.bucket + "-no")

    def test_what_is_not_set_is_said_to_be_not_set(self):
        for call, code in (
            ("get_bucket_policy", "NoSuchBucketPolicy"),
            ("get_bucket_cors", "NoSuchCORSConfiguration"),
            ("get_bucket_lifecycle_configuration", "NoSuchLifecycleConfiguration"),
            ("get_bucket_tagging", "NoSuchTagSet"),
            ("get_bucket_website", "NoSuchWebsiteConfiguration"),
            ("get_bucket_encryption", "ServerSideEncryptionConfigurationNotFoundError"),
            ("get_object_lock_configuration", "ObjectLockConfigurationNotFoundError"),
            ("get_public_access_block", "NoSuchPublicAccessBlockConfiguration"),
        ):
            error = self.refused(code, getattr(self.s3, call), Bucket=self.bucket)
            self.assertEqual(error["ResponseMetadata"]["HTTPStatusCode"], 404, call)
            self.refused("NoSuchBucket", getattr(self.s3, call), Bucket=self.bucket + "-no")
        acl = self.s3.get_bucket_acl(Bucket=self.bucket)
        self.assertEqual([g["Permission"] for g in acl["Grants"]], ["FULL_CONTROL"])
        for call in ("get_bucket_logging", "get_bucket_notification_configuration", "get_bucket_request_payment"):
            getattr(self.s3, call)(Bucket=self.bucket)
        for call in ("delete_bucket_policy", "delete_bucket_cors", "delete_bucket_lifecycle", "delete_bucket_tagging"):
            getattr(self.s3, call)(Bucket=self.bucket)

    def test_a_location_is_kept(self):
        name = self.bucket + "-eu"
        self.s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        self.addCleanup(self.s3.delete_bucket, Bucket=name)
        self.assertEqual(self.s3.get_bucket_location(Bucket=name)["LocationConstraint"], "eu-west-1")
        self.assertEqual(self.s3.head_bucket(Bucket=name)["BucketRegion"], "eu-west-1")
        self.assertEqual(self.s3.head_bucket(Bucket=self.bucket)["BucketRegion"], "us-east-1")

    def test_names_and_pages_of_buckets(self):
        for bad in ("foo.-bar", "foo-.bar"):
            self.refused("InvalidBucketName", self.s3.create_bucket, Bucket=bad)
        names = [f"{self.bucket}-{i}" for i in range(3)]
        for name in names:
            self.s3.create_bucket(Bucket=name)
            self.addCleanup(self.s3.delete_bucket, Bucket=name)
        page = self.s3.list_buckets(Prefix=self.bucket, MaxBuckets=3)
        self.assertEqual([b["Name"] for b in page["Buckets"]], [self.bucket] + names[:2])
        page = self.s3.list_buckets(Prefix=self.bucket, ContinuationToken=page["ContinuationToken"])
        self.assertEqual([b["Name"] for b in page["Buckets"]], names[2:])

    def test_tags(self):
        tags = [{"Key": "a", "Value": "1"}, {"Key": "b c", "Value": "ü"}]
        self.s3.put_bucket_tagging(Bucket=self.bucket, Tagging={"TagSet": tags})
        self.assertEqual(self.s3.get_bucket_tagging(Bucket=self.bucket)["TagSet"], tags)
        self.s3.delete_bucket_tagging(Bucket=self.bucket)
        self.refused("NoSuchTagSet", self.s3.get_bucket_tagging, Bucket=self.bucket)

    def test_lifecycle(self):
        rule = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 3}}
        abort = {"ID": "a", "Status": "Enabled", "Filter": {"Prefix": ""}}
        abort["AbortIncompleteMultipartUpload"] = {"DaysAfterInitiation": 7}
        put = lambda *rules: self.s3.put_bucket_lifecycle_configuration(
            Bucket=self.bucket, LifecycleConfiguration={"Rules": list(rules)}
        )
        put(rule, abort)
        kept = self.s3.get_bucket_lifecycle_configuration(Bucket=self.bucket)["Rules"]
        self.assertEqual(kept, [rule, abort])
        cold = {**rule, "Transitions": [{"Days": 1, "StorageClass": "GLACIER"}]}
        self.refused("InvalidStorageClass", put, cold)
        self.s3.delete_bucket_lifecycle(Bucket=self.bucket)

    def test_pages_of_other_origins(self):
        rules = [{"AllowedOrigins": ["https://*.example.org"], "AllowedMethods": ["GET"], "AllowedHeaders": ["x-*"]}]
        self.s3.put_bucket_cors(Bucket=self.bucket, CORSConfiguration={"CORSRules": rules})
        self.assertEqual(self.s3.get_bucket_cors(Bucket=self.bucket)["CORSRules"], rules)
        self.put("key", b"text")

        def options(method, origin="https://www.example.org"):
            headers = {"Origin": origin, "Access-Control-Request-Method": method, "Access-Control-Request-Headers": "X-A"}
            return ask(f"{ENDPOINT}/{self.bucket}/key", "OPTIONS", headers=headers)

        status, _, headers = options("GET")
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (200, "https://www.example.org"))
        self.assertEqual(headers["Access-Control-Allow-Headers"], "x-a")
        self.assertEqual(options("PUT")[0], 403)
        self.assertEqual(options("GET", "https://evil.org")[0], 403)
        url = self.s3.generate_presigned_url("get_object", {"Bucket": self.bucket, "Key": "key"})
        status, body, headers = ask(url, headers={"Origin": "https://www.example.org"})
        self.assertEqual((status, body), (200, b"text"))
        self.assertEqual(headers["Access-Control-Allow-Origin"], "https://www.example.org")
        self.assertNotIn("Access-Control-Allow-Origin", ask(url, headers={"Origin": "https://evil.org"})[2])

    def test_a_bucket_in_the_host_name(self):
        self.put("dir/key", b"text")
        port = urllib.parse.urlparse(ENDPOINT).port
        resolve = socket.getaddrinfo
        self.addCleanup(setattr, socket, "getaddrinfo", resolve)
        # Not every resolver knows that names below localhost are this machine.
        own = lambda host, *more, **named: resolve("127.0.0.1" if "localhost" in host else host, *more, **named)
        socket.getaddrinfo = own
        virtual = client(endpoint=f"http://localhost:{port}", s3={"addressing_style": "virtual"})
        self.assertEqual(virtual.get_object(Bucket=self.bucket, Key="dir/key")["Body"].read(), b"text")
        virtual.put_object(Bucket=self.bucket, Key="other", Body=b"x")
        self.assertEqual(self.body("other"), b"x")

    def test_location_and_versioning(self):
        self.assertIsNone(self.s3.get_bucket_location(Bucket=self.bucket)["LocationConstraint"])
        self.assertNotIn("Status", self.s3.get_bucket_versioning(Bucket=self.bucket))


class Objects(S3Test):
    def test_sizes_around_every_boundary(self):
        sizes = [0, 1, 4095, 4096, 4097, 65536, 512 * 1024 - 1, 512 * 1024, 512 * 1024 + 1]
        sizes += [MIB - 1, MIB, MIB + 1, 3 * MIB + 5, 9 * MIB]
        for size in sizes:
            body = data(size, size)
            answer = self.put(f"size/{size}", body)
            self.assertEqual(answer["ETag"], f'"{hashlib.md5(body).hexdigest()}"')
        for size in sizes:
            self.assertEqual(self.body(f"size/{size}"), data(size, size), size)
            head = self.s3.head_object(Bucket=self.bucket, Key=f"size/{size}")
            self.assertEqual(head["ContentLength"], size)

    def test_many_small_objects_at_once(self):
        bodies = {f"k{i}": data(random.Random(i).randrange(1, 20000), i) for i in range(300)}
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            list(pool.map(lambda item: self.put(*item), bodies.items()))
            for key, body in zip(bodies, pool.map(self.body, bodies)):
                self.assertEqual(body, bodies[key], key)

    def test_overwrite_and_delete(self):
        for body in (b"one", data(2 * MIB), b"three"):
            self.put("key", body)
            self.assertEqual(self.body("key"), body)
        self.s3.delete_object(Bucket=self.bucket, Key="key")
        self.refused("NoSuchKey", self.get, "key")
        self.refused(404, self.s3.head_object, Bucket=self.bucket, Key="key")
        self.s3.delete_object(Bucket=self.bucket, Key="key")

    def test_multi_object_delete(self):
        for i in range(20):
            self.put(f"k{i}")
        objects = [{"Key": f"k{i}"} for i in range(15)] + [{"Key": "never"}]
        answer = self.s3.delete_objects(Bucket=self.bucket, Delete={"Objects": objects})
        self.assertEqual({d["Key"] for d in answer["Deleted"]}, {o["Key"] for o in objects})
        left = self.s3.list_objects_v2(Bucket=self.bucket)["Contents"]
        self.assertEqual(len(left), 5)

    def test_metadata_and_headers(self):
        expires = datetime.datetime(2031, 5, 6, 7, 8, 9, tzinfo=datetime.timezone.utc)
        self.put(
            "key",
            b"text",
            ContentType="text/x-test",
            ContentEncoding="identity",
            ContentLanguage="de",
            ContentDisposition='attachment; filename="a.txt"',
            CacheControl="max-age=5",
            Expires=expires,
            Metadata={"Colour": "blue", "empty": "", "umlaut": "aou"},
        )
        for answer in (self.s3.head_object(Bucket=self.bucket, Key="key"), self.get("key")):
            self.assertEqual(answer["ContentType"], "text/x-test")
            self.assertEqual(answer["ContentEncoding"], "identity")
            self.assertEqual(answer["ContentLanguage"], "de")
            self.assertEqual(answer["ContentDisposition"], 'attachment; filename="a.txt"')
            self.assertEqual(answer["CacheControl"], "max-age=5")
            self.assertEqual(answer["Metadata"], {"colour": "blue", "empty": "", "umlaut": "aou"})
            self.assertEqual(answer["ExpiresString"], "Tue, 06 May 2031 07:08:09 GMT")
            age = datetime.datetime.now(datetime.timezone.utc) - answer["LastModified"]
            self.assertLess(abs(age.total_seconds()), 60)
        answer = self.get("key", ResponseContentType="text/other", ResponseCacheControl="no-cache")
        self.assertEqual(answer["ContentType"], "text/other")
        self.assertEqual(answer["CacheControl"], "no-cache")

    def test_bounds_and_defaults_of_metadata(self):
        self.put("key")
        self.assertEqual(self.get("key")["ContentType"], "binary/octet-stream")
        self.put("key", Metadata={"a": "x" * 2047})
        self.refused("MetadataTooLarge", self.put, "key", Metadata={"a": "x" * 2048})
        self.put("key", ContentEncoding="deflate, gzip")
        self.assertEqual(self.get("key")["ContentEncoding"], "deflate, gzip")

    def test_tags_of_objects(self):
        tagging = lambda: self.s3.get_object_tagging(Bucket=self.bucket, Key="key")["TagSet"]
        self.put("key", Tagging="a=1&b=x%20y")
        self.assertEqual(tagging(), [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "x y"}])
        self.assertEqual(self.get("key")["TagCount"], 2)
        self.s3.copy_object(Bucket=self.bucket, Key="copy", CopySource=f"{self.bucket}/key")
        self.assertEqual(self.get("copy")["TagCount"], 2)
        new = [{"Key": "c", "Value": ""}]
        self.s3.put_object_tagging(Bucket=self.bucket, Key="key", Tagging={"TagSet": new})
        self.assertEqual(tagging(), new)
        self.s3.delete_object_tagging(Bucket=self.bucket, Key="key")
        self.assertEqual(tagging(), [])
        eleven = {"TagSet": [{"Key": str(i), "Value": ""} for i in range(11)]}
        self.refused("InvalidTag", self.s3.put_object_tagging, Bucket=self.bucket, Key="key", Tagging=eleven)

    def test_versions_of_unversioned_objects(self):
        for key in ("a", "b", "dir/c"):
            self.put(key)
        listed = self.s3.list_object_versions(Bucket=self.bucket, Delimiter="/", MaxKeys=2)
        self.assertEqual([(v["Key"], v["VersionId"], v["IsLatest"]) for v in listed["Versions"]],
                         [("a", "null", True), ("b", "null", True)])
        self.assertTrue(listed["IsTruncated"])
        more = self.s3.list_object_versions(Bucket=self.bucket, Delimiter="/", KeyMarker=listed["NextKeyMarker"])
        self.assertEqual([p["Prefix"] for p in more["CommonPrefixes"]], ["dir/"])
        resource = boto3.resource("s3", endpoint_url=ENDPOINT, aws_access_key_id=ACCESS_KEY,
                                  aws_secret_access_key=SECRET_KEY, region_name="us-east-1")
        resource.Bucket(self.bucket).object_versions.delete()
        self.assertEqual(self.s3.list_objects_v2(Bucket=self.bucket)["KeyCount"], 0)

    def test_errors_have_request_ids(self):
        error = self.refused("NoSuchKey", self.get, "no")
        self.assertTrue(error["ResponseMetadata"]["RequestId"])
        self.assertEqual(error["Error"].get("RequestId", error["ResponseMetadata"]["RequestId"]),
                         error["ResponseMetadata"]["HTTPHeaders"]["x-amz-request-id"])

    def test_ranges(self):
        body = data(3 * MIB + 77)
        self.put("large", body)
        self.put("small", body[:10000])
        for key, whole in (("large", body), ("small", body[:10000])):
            size = len(whole)
            for text, expected in (
                ("bytes=0-0", whole[:1]),
                ("bytes=5000-5999", whole[5000:6000]),
                (f"bytes={size - 1}-", whole[-1:]),
                ("bytes=-100", whole[-100:]),
                (f"bytes=100-{size + 50}", whole[100:]),
                (f"bytes=-{size + 50}", whole),
            ):
                answer = self.get(key, Range=text)
                self.assertEqual(answer["Body"].read(), expected, text)
                self.assertEqual(answer["ResponseMetadata"]["HTTPStatusCode"], 206)
                start = whole.index(expected[:50]) if len(expected) > 1 else int(answer["ContentRange"][6:].split("-")[0])
                end = start + len(expected) - 1
                self.assertEqual(answer["ContentRange"], f"bytes {start}-{end}/{size}")
            self.refused("InvalidRange", self.get, key, Range=f"bytes={size}-")
            head = self.s3.head_object(Bucket=self.bucket, Key=key, Range="bytes=1-5")
            self.assertEqual(head["ResponseMetadata"]["HTTPStatusCode"], 206)
            self.assertEqual((head["ContentRange"], head["ContentLength"]), (f"bytes 1-5/{size}", 5))
        self.put("empty", b"")
        self.refused("InvalidRange", self.get, "empty", Range="bytes=-5")
        self.refused(416, self.s3.head_object, Bucket=self.bucket, Key="empty", Range="bytes=-5")
        across = self.body("large", Range=f"bytes={MIB - 3}-{2 * MIB + 3}")
        self.assertEqual(across, body[MIB - 3 : 2 * MIB + 4])

    def test_conditional_reads(self):
        tag = self.put("key", b"text")["ETag"]
        now = datetime.datetime.now(datetime.timezone.utc)
        past, future = now - datetime.timedelta(hours=1), now + datetime.timedelta(hours=1)
        head = lambda **more: self.s3.head_object(Bucket=self.bucket, Key="key", **more)
        for read in (lambda **more: self.get("key", **more), head):
            for good in (
                {"IfMatch": tag},
                {"IfMatch": "*"},
                {"IfNoneMatch": '"other"'},
                {"IfModifiedSince": past},
                {"IfUnmodifiedSince": future},
                {"IfMatch": tag, "IfUnmodifiedSince": past},
                {"IfNoneMatch": '"other"', "IfModifiedSince": future},
            ):
                read(**good)
            for bad in ({"IfMatch": '"other"'}, {"IfUnmodifiedSince": past}):
                self.refused(412, read, **bad)
            for same in ({"IfNoneMatch": tag}, {"IfNoneMatch": "*"}, {"IfModifiedSince": future}):
                self.refused(304, read, **same)

    def test_conditional_writes(self):
        tag = self.put("key", b"one", IfNoneMatch="*")["ETag"]
        self.refused("PreconditionFailed", self.put, "key", b"two", IfNoneMatch="*")
        self.refused("PreconditionFailed", self.put, "key", b"two", IfMatch='"00000000000000000000000000000000"')
        self.refused(404, self.put, "absent", b"two", IfMatch=tag)
        self.assertEqual(self.body("key"), b"one")
        self.put("key", b"two", IfMatch=tag)
        self.assertEqual(self.body("key"), b"two")

    def test_conditions_on_deletions(self):
        size = self.put("key", b"text") and 4
        modified = self.s3.head_object(Bucket=self.bucket, Key="key")["LastModified"]
        delete = lambda **more: self.s3.delete_object(Bucket=self.bucket, Key="key", **more)
        self.refused("PreconditionFailed", delete, IfMatchSize=size + 1)
        self.refused("PreconditionFailed", delete, IfMatchLastModifiedTime=modified - datetime.timedelta(days=1))
        self.refused("PreconditionFailed", delete, IfMatch='"other"')
        batch = lambda **more: self.s3.delete_objects(
            Bucket=self.bucket, Delete={"Objects": [{"Key": "key", **more}]}
        ).get("Errors")
        self.assertEqual(batch(Size=5)[0]["Code"], "PreconditionFailed")
        self.assertEqual(self.body("key"), b"text")
        self.assertIsNone(batch(Size=4, LastModifiedTime=modified))
        self.refused("NoSuchKey", self.get, "key")
        self.refused("NoSuchKey", self.put, "key", b"x", IfMatch='"never-given"')

    def test_only_one_of_many_creators_wins(self):
        def create(i):
            try:
                self.put("key", b"%d" % i, IfNoneMatch="*")
                return i
            except botocore.exceptions.ClientError as error:
                self.assertEqual(error.response["Error"]["Code"], "PreconditionFailed")

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            winners = [i for i in pool.map(create, range(16)) if i is not None]
        self.assertEqual(len(winners), 1)
        self.assertEqual(self.body("key"), b"%d" % winners[0])

    def test_strange_keys(self):
        keys = ["a b", "ü/ñ/漢字", "100%", "a+b&c=d?e", "x//y", "tab\tend", "'quote\"<xml>", "~", "k" * 1024]
        for key in keys:
            self.put(key, key.encode())
        for key in keys:
            self.assertEqual(self.body(key), key.encode())
        listed = [o["Key"] for o in self.s3.list_objects_v2(Bucket=self.bucket)["Contents"]]
        self.assertEqual(listed, sorted(keys, key=lambda k: k.encode()))
        self.refused("KeyTooLongError", self.put, "k" * 1025)

    def test_unsupported_wishes_are_refused_not_ignored(self):
        self.refused("NotImplemented", self.put, "key", b"x", ServerSideEncryption="AES256")
        self.refused("AccessControlListNotSupported", self.put, "key", b"x", ACL="public-read")
        self.refused("AccessControlListNotSupported", self.put, "key", b"x", GrantRead="id=a")
        self.refused("InvalidStorageClass", self.put, "key", b"x", StorageClass="GLACIER")
        self.refused("NotImplemented", self.put, "key", b"x", WebsiteRedirectLocation="/x")
        self.refused(403, self.put, "key", b"x", ExpectedBucketOwner="111122223333")
        enabled = {"Status": "Enabled"}
        self.refused(
            "NotImplemented", self.s3.put_bucket_versioning, Bucket=self.bucket, VersioningConfiguration=enabled
        )
        self.refused("NotImplemented", self.s3.put_bucket_policy, Bucket=self.bucket, Policy="{}")
        locked = self.bucket + "-locked"
        self.refused("NotImplemented", self.s3.create_bucket, Bucket=locked, ObjectLockEnabledForBucket=True)
        if hasattr(self.s3, "delete_object_annotation"):
            named = {"Bucket": self.bucket, "Key": "key", "AnnotationName": "x"}
            self.put("key", b"kept")
            self.refused("NotImplemented", self.s3.delete_object_annotation, **named)
            self.refused("NotImplemented", self.s3.put_object_annotation, AnnotationPayload=b"x", **named)
            self.refused("NotImplemented", self.s3.get_object_annotation, **named)
            self.assertEqual(self.body("key"), b"kept")
        self.put("key", ACL="private", StorageClass="STANDARD", ExpectedBucketOwner="ebb")
        self.put("key")
        self.refused(404, self.get, "key", VersionId="3")


class Checksums(S3Test):
    def own(self, algorithm, body):
        if algorithm == "CRC32":
            return base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
        if algorithm in ("SHA1", "SHA256"):
            return base64.b64encode(hashlib.new(algorithm.lower(), body).digest()).decode()
        return None

    def test_every_algorithm_is_kept_and_returned(self):
        body = data(100_000)
        for algorithm in ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"):
            try:
                answer = self.put(algorithm, body, ChecksumAlgorithm=algorithm)
            except botocore.exceptions.MissingDependencyException:
                continue  # needs the CRT, which plain boto3 lacks
            field = "Checksum" + algorithm
            self.assertIn(field, answer)
            if self.own(algorithm, body):
                self.assertEqual(answer[field], self.own(algorithm, body))
            for read in (self.get, lambda key, **m: self.s3.head_object(Bucket=self.bucket, Key=key, **m)):
                self.assertEqual(read(algorithm, ChecksumMode="ENABLED")[field], answer[field])
            kept = self.s3.get_object_attributes(
                Bucket=self.bucket, Key=algorithm, ObjectAttributes=["Checksum", "ETag", "ObjectSize"]
            )
            self.assertEqual(kept["Checksum"][field], answer[field])
            self.assertEqual(kept["ObjectSize"], len(body))

    def test_given_checksums_are_verified(self):
        body = b"123456789"
        good = {
            "ChecksumCRC32": "y/Q5Jg==",
            "ChecksumCRC32C": "4waSgw==",
            "ChecksumCRC64NVME": "rosUhgp5mIg=",
            "ChecksumSHA1": self.own("SHA1", body),
            "ChecksumSHA256": self.own("SHA256", body),
        }
        for field, value in good.items():
            answer = self.put(field, body, **{field: value})
            self.assertEqual(answer[field], value)
            self.refused("BadDigest", self.put, "bad", b"12345678X", **{field: value})
        self.put("md5", body, ContentMD5=base64.b64encode(hashlib.md5(body).digest()).decode())
        wrong = base64.b64encode(hashlib.md5(b"other").digest()).decode()
        self.refused("BadDigest", self.put, "bad", body, ContentMD5=wrong)
        self.refused("NoSuchKey", self.get, "bad")

    def test_checksum_in_a_trailer(self):
        # As the SDKs send it over TLS: aws-chunked with a trailer after the last chunk, signed without the payload.
        body = data(3 * MIB)
        chunks = [body[at : at + 65536] for at in range(0, len(body), 65536)]
        for sent, status in ((self.own("CRC32", body), 200), ("AAAAAA==", 400)):
            framed = b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks)
            framed += b"0\r\nx-amz-checksum-crc32:" + sent.encode() + b"\r\n\r\n"
            request = botocore.awsrequest.AWSRequest(
                "PUT",
                f"{ENDPOINT}/{self.bucket}/key",
                headers={
                    "Content-Encoding": "aws-chunked",
                    "X-Amz-Trailer": "x-amz-checksum-crc32",
                    "X-Amz-Decoded-Content-Length": str(len(body)),
                    "X-Amz-Content-SHA256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
                    "Content-Length": str(len(framed)),
                },
                data=framed,
            )
            request.context["payload_signing_enabled"] = False
            self.signer().add_auth(request)
            self.assertEqual(self.status(request.url, "PUT", framed, dict(request.headers)), status)
        got = self.get("key", ChecksumMode="ENABLED")
        self.assertEqual(got["Body"].read(), body)
        self.assertEqual(got["ChecksumCRC32"], self.own("CRC32", body))
        self.assertNotIn("ContentEncoding", got)

    def signer(self):
        class KeepsThePayloadHeader(botocore.auth.S3SigV4Auth):
            def payload(self, request):
                return request.headers["X-Amz-Content-SHA256"]

            def _modify_request_before_signing(self, request):
                kept = request.headers["X-Amz-Content-SHA256"]
                super()._modify_request_before_signing(request)
                del request.headers["X-Amz-Content-SHA256"]
                request.headers["X-Amz-Content-SHA256"] = kept

        keys = botocore.credentials.Credentials(ACCESS_KEY, SECRET_KEY)
        return KeepsThePayloadHeader(keys, "s3", "us-east-1")

    def status(self, url, method, body, headers):
        request = urllib.request.Request(url, data=body, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code


class Listings(S3Test):
    COUNT = 2500

    def fill(self):
        names = [f"dir{i % 50:02}/sub{i % 7}/file{i:05}" for i in range(self.COUNT)]
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            list(pool.map(lambda key: self.put(key, b""), names))
        return sorted(names)

    def test_paging_prefix_and_delimiter(self):
        names = self.fill()
        for operation in ("list_objects_v2", "list_objects"):
            pages = list(self.s3.get_paginator(operation).paginate(Bucket=self.bucket))
            self.assertEqual([len(p["Contents"]) for p in pages], [1000, 1000, 500])
            self.assertEqual([o["Key"] for p in pages for o in p["Contents"]], names)

            pages = self.s3.get_paginator(operation).paginate(
                Bucket=self.bucket, Prefix="dir07/", PaginationConfig={"PageSize": 7}
            )
            found = [o["Key"] for p in pages for o in p.get("Contents", [])]
            self.assertEqual(found, [n for n in names if n.startswith("dir07/")])

            for size in (1000, 3, 1):
                pages = list(
                    self.s3.get_paginator(operation).paginate(
                        Bucket=self.bucket, Delimiter="/", PaginationConfig={"PageSize": size}
                    )
                )
                prefixes = [p["Prefix"] for page in pages for p in page.get("CommonPrefixes", [])]
                self.assertEqual(prefixes, sorted({n.split("/")[0] + "/" for n in names}))
                self.assertFalse(any(page.get("Contents") for page in pages))

            answer = getattr(self.s3, operation)(Bucket=self.bucket, Prefix="dir03/", Delimiter="/")
            prefixes = [p["Prefix"] for p in answer["CommonPrefixes"]]
            expected = sorted({"/".join(n.split("/")[:2]) + "/" for n in names if n.startswith("dir03/")})
            self.assertEqual(prefixes, expected)
            self.assertFalse(answer["IsTruncated"])

        answer = self.s3.list_objects_v2(Bucket=self.bucket, StartAfter=names[1233], MaxKeys=2, FetchOwner=True)
        self.assertEqual([o["Key"] for o in answer["Contents"]], names[1234:1236])
        self.assertEqual(answer["KeyCount"], 2)
        self.assertIn("ID", answer["Contents"][0]["Owner"])
        empty = self.s3.list_objects_v2(Bucket=self.bucket, MaxKeys=0)
        self.assertEqual((empty["KeyCount"], empty["IsTruncated"]), (0, False))
        self.refused("InvalidArgument", self.s3.list_objects_v2, Bucket=self.bucket, ContinuationToken="!")

    def test_an_entry_says_what_the_object_is(self):
        tag = self.put("key", b"12345")["ETag"]
        entry = self.s3.list_objects_v2(Bucket=self.bucket)["Contents"][0]
        self.assertEqual((entry["Key"], entry["Size"], entry["ETag"]), ("key", 5, tag))
        self.assertEqual(entry["StorageClass"], "STANDARD")


class Copies(S3Test):
    def test_copy_keeps_or_replaces_metadata(self):
        body = data(2 * MIB + 9)
        source = {"Bucket": self.bucket, "Key": "a ü"}
        tag = self.put("a ü", body, Metadata={"k": "v"}, ContentType="text/a")["ETag"]
        answer = self.s3.copy_object(Bucket=self.bucket, Key="b", CopySource=source)
        self.assertEqual(answer["CopyObjectResult"]["ETag"], tag)
        got = self.get("b")
        self.assertEqual((got["Body"].read(), got["Metadata"], got["ContentType"]), (body, {"k": "v"}, "text/a"))
        replace = {"MetadataDirective": "REPLACE", "Metadata": {"n": "w"}, "ContentType": "text/b"}
        self.s3.copy_object(Bucket=self.bucket, Key="a ü", CopySource=source, **replace)
        got = self.get("a ü")
        self.assertEqual((got["Body"].read(), got["Metadata"], got["ContentType"]), (body, {"n": "w"}, "text/b"))
        self.refused("InvalidRequest", self.s3.copy_object, Bucket=self.bucket, Key="b", CopySource=f"{self.bucket}/b")
        self.s3.delete_object(Bucket=self.bucket, Key="a ü")
        self.assertEqual(self.body("b"), body)

    def test_conditions_on_the_source(self):
        tag = self.put("a", b"text")["ETag"]
        copy = lambda **more: self.s3.copy_object(
            Bucket=self.bucket, Key="b", CopySource={"Bucket": self.bucket, "Key": "a"}, **more
        )
        copy(CopySourceIfMatch=tag)
        source = {"Bucket": self.bucket, "Key": "a"}

        def unless_there(params, **_):
            params["headers"]["If-None-Match"] = "*"

        self.s3.meta.events.register("before-call.s3.CopyObject", unless_there)
        self.refused("PreconditionFailed", copy)
        self.s3.meta.events.unregister("before-call.s3.CopyObject", unless_there)
        self.refused("PreconditionFailed", copy, CopySourceIfNoneMatch=tag)
        self.refused("PreconditionFailed", copy, CopySourceIfMatch='"other"')
        missing = {"Bucket": self.bucket, "Key": "no"}
        self.refused("NoSuchKey", self.s3.copy_object, Bucket=self.bucket, Key="b", CopySource=missing)


class Multipart(S3Test):
    def begin(self, key="key", **more):
        return self.s3.create_multipart_upload(Bucket=self.bucket, Key=key, **more)["UploadId"]

    def part(self, upload, number, body, key="key", **more):
        answer = self.s3.upload_part(
            Bucket=self.bucket, Key=key, UploadId=upload, PartNumber=number, Body=body, **more
        )
        return {"PartNumber": number, **{k: v for k, v in answer.items() if k == "ETag" or k.startswith("Checksum")}}

    def complete(self, upload, parts, key="key", **more):
        return self.s3.complete_multipart_upload(
            Bucket=self.bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}, **more
        )

    def test_three_parts(self):
        bodies = [data(5 * MIB, 1), data(5 * MIB + 3, 2), data(1000, 3)]
        upload = self.begin(Metadata={"k": "v"}, ContentType="text/a")
        parts = [self.part(upload, number, body) for number, body in ((3, bodies[2]), (1, bodies[0]), (2, bodies[1]))]
        listed = self.s3.list_parts(Bucket=self.bucket, Key="key", UploadId=upload)["Parts"]
        self.assertEqual([(p["PartNumber"], p["Size"]) for p in listed], [(i + 1, len(b)) for i, b in enumerate(bodies)])
        page = self.s3.list_parts(Bucket=self.bucket, Key="key", UploadId=upload, MaxParts=1, PartNumberMarker=1)
        self.assertEqual((page["Parts"][0]["PartNumber"], page["IsTruncated"]), (2, True))
        uploads = self.s3.list_multipart_uploads(Bucket=self.bucket)["Uploads"]
        self.assertEqual([(u["Key"], u["UploadId"]) for u in uploads], [("key", upload)])
        self.refused("NoSuchKey", self.get, "key")
        parts.sort(key=lambda p: p["PartNumber"])
        tag = self.complete(upload, parts)["ETag"]
        joined = hashlib.md5(b"".join(hashlib.md5(b).digest() for b in bodies)).hexdigest()
        self.assertEqual(tag, f'"{joined}-3"')
        got = self.get("key")
        self.assertEqual(got["Body"].read(), b"".join(bodies))
        self.assertEqual((got["Metadata"], got["ContentType"]), ({"k": "v"}, "text/a"))
        second = self.get("key", PartNumber=2)
        self.assertEqual(second["Body"].read(), bodies[1])
        self.assertEqual(second["PartsCount"], 3)
        self.refused("InvalidPartNumber", self.get, "key", PartNumber=4)
        across = self.body("key", Range=f"bytes={5 * MIB - 5}-{10 * MIB + 10}")
        self.assertEqual(across, b"".join(bodies)[5 * MIB - 5 : 10 * MIB + 11])
        self.assertNotIn("Uploads", self.s3.list_multipart_uploads(Bucket=self.bucket))
        self.assertEqual(self.complete(upload, parts)["ETag"], tag, "its answer was lost: it is asked for again")
        self.put("key", b"other")
        self.refused("NoSuchUpload", self.complete, upload, parts)

    def test_bad_completions(self):
        upload = self.begin()
        first, second = self.part(upload, 1, b"small"), self.part(upload, 2, b"small too")
        self.refused("EntityTooSmall", self.complete, upload, [first, second])
        self.refused("InvalidPartOrder", self.complete, upload, [second, first])
        wrong = {"PartNumber": 1, "ETag": '"00000000000000000000000000000000"'}
        self.refused("InvalidPart", self.complete, upload, [wrong])
        self.refused("InvalidPart", self.complete, upload, [{"PartNumber": 9, "ETag": first["ETag"]}])
        self.put("key", b"there")
        self.refused("PreconditionFailed", self.complete, upload, [second], IfNoneMatch="*")
        self.complete(upload, [second])
        self.assertEqual(self.body("key"), b"small too")
        self.refused("NoSuchUpload", self.part, "ffff", 1, b"x")

    def test_a_copied_part_is_never_short(self):
        self.put("source", b"0123456789")
        upload = self.begin()
        copy = lambda text: self.s3.upload_part_copy(
            Bucket=self.bucket, Key="key", UploadId=upload, PartNumber=1, CopySourceRange=text,
            CopySource={"Bucket": self.bucket, "Key": "source"},
        )
        copy("bytes=0-9")
        self.refused("InvalidArgument", copy, "bytes=0-10")
        self.refused("InvalidArgument", copy, "bytes=5-")

    def test_parts_keep_their_numbers_and_checksums(self):
        bodies = {7: data(5 * MIB, 1), 9999: data(10, 2)}
        upload = self.begin(ChecksumAlgorithm="CRC32")
        parts = [self.part(upload, n, body, ChecksumAlgorithm="CRC32") for n, body in bodies.items()]
        self.complete(upload, parts)
        for part in parts:
            got = self.get("key", PartNumber=part["PartNumber"], ChecksumMode="ENABLED")
            self.assertEqual(got["Body"].read(), bodies[part["PartNumber"]])
            self.assertEqual(got["ChecksumCRC32"], part["ChecksumCRC32"])
        kept = self.s3.get_object_attributes(
            Bucket=self.bucket, Key="key", ObjectAttributes=["ETag", "ObjectParts"], MaxParts=1
        )
        self.assertNotIn('"', kept["ETag"])
        page = kept["ObjectParts"]
        self.assertEqual((page["TotalPartsCount"], page["IsTruncated"], page["NextPartNumberMarker"]), (2, True, 7))
        self.assertEqual(page["Parts"][0]["ChecksumCRC32"], parts[0]["ChecksumCRC32"])

    def test_listing_with_a_delimiter(self):
        for key in ("a", "d/1", "d/2", "e/3", "f"):
            self.begin(key)
        seen, marker = [], {}
        while True:
            page = self.s3.list_multipart_uploads(Bucket=self.bucket, Delimiter="/", MaxUploads=2, **marker)
            seen += [u["Key"] for u in page.get("Uploads", [])] + [p["Prefix"] for p in page.get("CommonPrefixes", [])]
            if not page["IsTruncated"]:
                break
            marker = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
        self.assertEqual(sorted(seen), ["a", "d/", "e/", "f"])

    def test_abort(self):
        upload = self.begin()
        self.part(upload, 1, data(6 * MIB))
        self.s3.abort_multipart_upload(Bucket=self.bucket, Key="key", UploadId=upload)
        self.refused("NoSuchUpload", self.s3.list_parts, Bucket=self.bucket, Key="key", UploadId=upload)
        self.refused("NoSuchUpload", self.s3.abort_multipart_upload, Bucket=self.bucket, Key="key", UploadId=upload)

    def test_checksums_of_the_whole(self):
        bodies = [data(5 * MIB, 1), data(7, 2)]
        whole = b"".join(bodies)
        crc = base64.b64encode(zlib.crc32(whole).to_bytes(4, "big")).decode()
        upload = self.begin(ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")
        parts = [self.part(upload, i + 1, b, ChecksumAlgorithm="CRC32") for i, b in enumerate(bodies)]
        answer = self.complete(upload, parts, ChecksumCRC32=crc, ChecksumType="FULL_OBJECT", MpuObjectSize=len(whole))
        self.assertEqual((answer["ChecksumCRC32"], answer["ChecksumType"]), (crc, "FULL_OBJECT"))
        self.assertEqual(self.body("key", ChecksumMode="ENABLED"), whole)

        digest = lambda b: hashlib.sha256(b).digest()
        composite = base64.b64encode(digest(b"".join(map(digest, bodies)))).decode() + "-2"
        upload = self.begin(ChecksumAlgorithm="SHA256")
        parts = [self.part(upload, i + 1, b, ChecksumAlgorithm="SHA256") for i, b in enumerate(bodies)]
        answer = self.complete(upload, parts)
        self.assertEqual((answer["ChecksumSHA256"], answer["ChecksumType"]), (composite, "COMPOSITE"))
        kept = self.s3.get_object_attributes(
            Bucket=self.bucket, Key="key", ObjectAttributes=["Checksum", "ObjectParts"]
        )
        self.assertEqual(kept["Checksum"]["ChecksumSHA256"], composite)
        self.assertEqual(kept["ObjectParts"]["TotalPartsCount"], 2)

    def test_a_composite_checksum_may_lack_the_number_of_parts(self):
        bodies = [data(5 * MIB, 1), data(7, 2)]
        crc = lambda b: zlib.crc32(b).to_bytes(4, "big")
        bare = base64.b64encode(crc(b"".join(map(crc, bodies)))).decode()
        for sent, code in ((bare, None), (bare + "-2", None), (bare + "-3", "BadDigest"), ("AAAAAA==", "BadDigest")):
            upload = self.begin(ChecksumAlgorithm="CRC32")
            parts = [self.part(upload, i + 1, b, ChecksumAlgorithm="CRC32") for i, b in enumerate(bodies)]
            stated = {"ChecksumCRC32": sent, "ChecksumType": "COMPOSITE"}
            if code:
                self.refused(code, self.complete, upload, parts, **stated)
                self.s3.abort_multipart_upload(Bucket=self.bucket, Key="key", UploadId=upload)
            else:
                self.assertEqual(self.complete(upload, parts, **stated)["ChecksumCRC32"], bare + "-2")

    def test_copied_parts(self):
        source = data(12 * MIB)
        self.put("source", source)
        upload = self.begin()
        parts = []
        for number, (first, last) in enumerate(((0, 6 * MIB - 1), (6 * MIB, 12 * MIB - 1)), 1):
            answer = self.s3.upload_part_copy(
                Bucket=self.bucket,
                Key="key",
                UploadId=upload,
                PartNumber=number,
                CopySource={"Bucket": self.bucket, "Key": "source"},
                CopySourceRange=f"bytes={first}-{last}",
            )
            parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
        self.complete(upload, parts)
        self.assertEqual(self.body("key"), source)

    def test_transfer_manager(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "file")
            with open(path, "wb") as file:
                file.write(data(20 * MIB))
            self.s3.upload_file(path, self.bucket, "key")
            self.s3.download_file(self.bucket, "key", path + ".back")
            with open(path, "rb") as a, open(path + ".back", "rb") as b:
                self.assertEqual(a.read(), b.read())


class Access(S3Test):
    def status(self, url, method="GET", body=None, headers=None):
        request = urllib.request.Request(url, data=body, method=method, headers=headers or {})
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def test_wrong_keys_and_nobody_are_refused(self):
        self.put("key", b"text")
        for wrong in (client(secret="wrong" * 8), client(access="nobody")):
            self.refused(403, wrong.get_object, Bucket=self.bucket, Key="key")
            self.refused(403, wrong.put_object, Bucket=self.bucket, Key="key", Body=b"x")
            self.refused(403, wrong.list_buckets)
        for path in ("", f"{self.bucket}", f"{self.bucket}/key"):
            self.assertEqual(self.status(f"{ENDPOINT}/{path}")[0], 403)
        self.assertEqual(self.status(f"{ENDPOINT}/{self.bucket}/key", "PUT", b"x")[0], 403)
        self.assertEqual(self.status(f"{ENDPOINT}/{self.bucket}/key", "DELETE")[0], 403)
        self.assertEqual(self.body("key"), b"text")

    def test_presigned_urls(self):
        sign = lambda operation, seconds=60: self.s3.generate_presigned_url(
            operation, {"Bucket": self.bucket, "Key": "a key"}, ExpiresIn=seconds
        )
        self.assertEqual(self.status(sign("put_object"), "PUT", b"presigned")[0], 200)
        self.assertEqual(self.status(sign("get_object")), (200, b"presigned"))
        self.assertEqual(self.status(sign("get_object"), "PUT", b"x")[0], 403)
        self.assertEqual(self.status(sign("get_object").replace("a%20key", "other"))[0], 403)
        self.assertIn(self.status(sign("get_object", -1))[0], (400, 403))
        old = client(signature_version="s3").generate_presigned_url("get_object", {"Bucket": self.bucket, "Key": "a key"})
        status, answer = self.status(old)
        self.assertEqual(status, 400)
        self.assertIn(b"signature_version=&apos;s3v4&apos;", answer, "it says the cure")

    def test_headers_that_are_not_signed_are_refused(self):
        self.put("secret", b"text")
        sign = lambda seconds=60, **more: self.s3.generate_presigned_url(
            "put_object", {"Bucket": self.bucket, "Key": "key", **more}, ExpiresIn=seconds
        )
        source = {"x-amz-copy-source": f"/{self.bucket}/secret"}
        self.assertEqual(self.status(sign(), "PUT", b"x", source)[0], 403)
        self.assertEqual(self.status(sign(), "PUT", b"x", {"x-amz-meta-a": "b"})[0], 403)
        self.refused(404, self.s3.head_object, Bucket=self.bucket, Key="key")
        self.assertEqual(self.status(sign(Metadata={"a": "b"}), "PUT", b"x", {"x-amz-meta-a": "b"})[0], 200)
        self.assertEqual(self.get("key")["Metadata"], {"a": "b"})
        self.assertEqual(self.status(sign(7 * 24 * 3600 + 1), "PUT", b"x")[0], 400)
        self.assertEqual(self.status(sign(7 * 24 * 3600), "PUT", b"x")[0], 200)

    def test_forms_of_browsers(self):
        def post(name, conditions=(), fields=None, key="up/${filename}"):
            form = self.s3.generate_presigned_post(
                self.bucket, key, Conditions=[["starts-with", "$key", "up/"], *conditions], Fields=fields or {}
            )
            parts = b"".join(
                f'--b\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n'.encode()
                for k, v in {**form["fields"], **(fields or {})}.items()
            )
            parts += f'--b\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
            parts += b"text\r\n--b--\r\n"
            return ask(form["url"], "POST", parts, {"Content-Type": "multipart/form-data; boundary=b"})

        status, answer, headers = post("a b.txt")
        self.assertEqual(status, 204, answer)
        self.assertEqual(headers["Location"], f"/{self.bucket}/up/a%20b.txt")
        self.assertEqual(self.body("up/a b.txt"), b"text")
        acl = [["starts-with", "$acl", ""]]
        self.assertEqual(post("x", acl, {"acl": "public-read"})[0], 400)
        self.assertEqual(post("x", [["eq", "$x-amz-meta-a", "b"]], {"x-amz-meta-a": "c"})[0], 403)
        self.refused(404, self.s3.head_object, Bucket=self.bucket, Key="up/x")

    def test_a_tampered_body_is_refused(self):
        url = urllib.parse.urlparse(ENDPOINT)
        taken = {}
        self.s3.meta.events.register("before-send.s3.PutObject", lambda request, **_: taken.update(request=request))
        self.put("key", b"honest body")
        request = taken["request"]
        headers = "".join(
            f"{k}: {v.decode() if isinstance(v, bytes) else v}\r\n" for k, v in request.headers.items()
        )
        for body in (b"honest bodx", b"honest"):
            with socket.create_connection((url.hostname, url.port)) as connection:
                start = f"PUT /{self.bucket}/key HTTP/1.1\r\nHost: {url.netloc}\r\n{headers}\r\n"
                connection.sendall(start.encode() + body)
                connection.shutdown(socket.SHUT_WR)
                answer = connection.recv(4096)
            self.assertFalse(answer.startswith(b"HTTP/1.1 200"), answer)
        self.assertEqual(self.body("key"), b"honest body")


def skip(why):
    """Ends a test that cannot be run here; `make test` counts it (crates/ground/testing)."""
    if "EBB_SKIPPED" in os.environ:
        with open(os.environ["EBB_SKIPPED"], "a") as file:
            file.write(f"s3_clients::{why}\n")
    raise unittest.SkipTest(why)


def run(*command, **more):
    if shutil.which(command[0]) is None:
        skip(f"{command[0]} is not installed")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, **more)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


class Programs(S3Test):
    def setUp(self):
        super().setUp()
        self.directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.directory)
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "HOME": self.directory,
        }

    def tree(self, name):
        """A directory with files of many sizes."""
        top = os.path.join(self.directory, name)
        for i, size in enumerate([0, 1, 100, 4096, 5000, 70_000, 600_000, 3 * MIB, 20 * MIB]):
            path = os.path.join(top, f"dir{i % 3}", f"file {i}")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data(size, i))
        return top

    def test_awscli(self):
        tree = self.tree("tree")
        binary = os.path.join(os.path.dirname(sys.executable), "aws")
        aws = [binary if os.path.exists(binary) else "aws", "--endpoint-url", ENDPOINT]
        run(*aws, "s3", "cp", "--quiet", f"{tree}/dir2/file 8", f"s3://{self.bucket}/one", env=self.env)
        run(*aws, "s3", "sync", "--quiet", tree, f"s3://{self.bucket}/tree", env=self.env)
        self.assertIn("tree/", run(*aws, "s3", "ls", f"s3://{self.bucket}", env=self.env))
        back = os.path.join(self.directory, "back")
        run(*aws, "s3", "sync", "--quiet", f"s3://{self.bucket}/tree", back, env=self.env)
        run("diff", "-r", tree, back)
        run(*aws, "s3", "mv", "--quiet", f"s3://{self.bucket}/one", f"s3://{self.bucket}/two", env=self.env)
        run(*aws, "s3", "rm", "--quiet", "--recursive", f"s3://{self.bucket}/tree", env=self.env)
        left = run(*aws, "s3", "ls", "--recursive", f"s3://{self.bucket}", env=self.env).split()
        self.assertEqual(left[2:], [str(20 * MIB), "two"])
        out = run(*aws, "s3api", "head-object", "--bucket", self.bucket, "--key", "two", env=self.env)
        self.assertIn("ContentLength", out)

    def test_rclone(self):
        tree = self.tree("tree")
        env = {
            **self.env,
            "RCLONE_CONFIG_EBB_TYPE": "s3",
            "RCLONE_CONFIG_EBB_PROVIDER": "Other",
            "RCLONE_CONFIG_EBB_ENDPOINT": ENDPOINT,
            "RCLONE_CONFIG_EBB_ACCESS_KEY_ID": ACCESS_KEY,
            "RCLONE_CONFIG_EBB_SECRET_ACCESS_KEY": SECRET_KEY,
            "RCLONE_S3_UPLOAD_CUTOFF": "8M",
            "RCLONE_S3_CHUNK_SIZE": "5M",
        }
        remote = f"ebb:{self.bucket}/tree"
        run("rclone", "sync", tree, remote, env=env)
        run("rclone", "check", tree, remote, env=env)
        run("rclone", "check", "--download", tree, remote, env=env)
        back = os.path.join(self.directory, "back")
        run("rclone", "sync", remote, back, env=env)
        run("diff", "-r", tree, back)
        os.remove(os.path.join(tree, "dir0", "file 0"))
        with open(os.path.join(tree, "dir1", "new"), "wb") as file:
            file.write(b"new")
        os.utime(os.path.join(tree, "dir1", "file 1"), (1_000_000_000, 1_000_000_000))
        run("rclone", "sync", tree, remote, env=env)
        run("rclone", "check", tree, remote, env=env)
        run("rclone", "sync", remote, back, env=env)
        run("diff", "-r", tree, back)
        run("rclone", "purge", remote, env=env)
        self.assertEqual(self.s3.list_objects_v2(Bucket=self.bucket)["KeyCount"], 0)

    def test_restic(self):
        tree = self.tree("tree")
        env = {
            **self.env,
            "RESTIC_REPOSITORY": f"s3:{ENDPOINT}/{self.bucket}/backups",
            "RESTIC_PASSWORD": "secret",
            "RESTIC_CACHE_DIR": os.path.join(self.directory, "cache"),
        }
        run("restic", "init", env=env)
        run("restic", "backup", tree, env=env)
        with open(os.path.join(tree, "dir1", "new"), "wb") as file:
            file.write(data(2 * MIB, 99))
        run("restic", "backup", tree, env=env)
        run("restic", "check", "--read-data", env=env)
        back = os.path.join(self.directory, "back")
        run("restic", "restore", "latest", "--target", back, env=env)
        run("diff", "-r", tree, back + tree)
        run("restic", "forget", "--keep-last", "1", "--prune", env=env)
        run("restic", "check", env=env)

    def needs(self, *programs):
        """Their paths, of this Python's environment first."""
        found = []
        for program in programs:
            own = os.path.join(os.path.dirname(sys.executable), program)
            path = own if os.path.exists(own) else shutil.which(program)
            if path is None:
                self.skipTest(f"{program} is not installed: scripts/install-test-tools installs it")
            found.append(path)
        return found[0] if len(found) == 1 else found

    def imported(self, *modules):
        try:
            found = [importlib.import_module(module) for module in modules]
        except ImportError as error:
            self.skipTest(f"{error}: scripts/install-test-tools installs it")
        return found[0] if len(found) == 1 else found

    def test_s3cmd_as_it_is(self):
        host = urllib.parse.urlparse(ENDPOINT).netloc
        config = os.path.join(self.directory, "s3cfg")
        with open(config, "w") as file:
            # Nothing but who and where: all the rest is s3cmd's default, its region US with it.
            file.write(f"[default]\naccess_key = {ACCESS_KEY}\nsecret_key = {SECRET_KEY}\n")
            file.write(f"host_base = {host}\nhost_bucket = {host}\nuse_https = False\n")
        s3cmd = [self.needs("s3cmd"), "-c", config, "--no-progress"]
        tree = self.tree("tree")
        name = self.bucket + "-s3cmd"
        run(*s3cmd, "mb", f"s3://{name}", env=self.env)
        self.assertIn(name, run(*s3cmd, "ls", env=self.env))
        run(*s3cmd, "sync", tree + "/", f"s3://{name}/tree/", env=self.env)
        run(*s3cmd, "put", f"{tree}/dir2/file 8", f"s3://{name}/large", env=self.env)
        self.assertIn(str(20 * MIB), run(*s3cmd, "info", f"s3://{name}/large", env=self.env))
        back = os.path.join(self.directory, "back")
        os.mkdir(back)
        run(*s3cmd, "sync", f"s3://{name}/tree/", back + "/", env=self.env)
        run("diff", "-r", tree, back)
        run(*s3cmd, "mv", f"s3://{name}/large", f"s3://{name}/moved", env=self.env)
        run(*s3cmd, "settagging", f"s3://{name}/moved", "k=v", env=self.env)
        run(*s3cmd, "rb", "--recursive", "--force", f"s3://{name}", env=self.env)
        self.refused(404, self.s3.head_bucket, Bucket=name)

    def test_minio_py(self):
        minio = self.imported("minio")
        from minio.commonconfig import ComposeSource, CopySource, Tags
        from minio.deleteobjects import DeleteObject

        host = urllib.parse.urlparse(ENDPOINT).netloc
        keys = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "secure": False}
        named = "endpoint" in inspect.signature(minio.Minio.__init__).parameters
        own = minio.Minio(endpoint=host, **keys) if named else minio.Minio(host, **keys)
        body = data(12 * MIB)
        kind = dict(bucket_name=self.bucket)
        own.put_object(**kind, object_name="known", data=io.BytesIO(body), length=len(body))
        own.put_object(**kind, object_name="unknown", data=io.BytesIO(body), length=-1, part_size=5 * MIB)
        for key in ("known", "unknown"):
            answer = own.get_object(**kind, object_name=key)
            self.assertEqual(answer.read(), body)
            answer.close()
        part = own.get_object(**kind, object_name="known", offset=5, length=10)
        self.assertEqual(part.read(), body[5:15])
        own.copy_object(**kind, object_name="copy", source=CopySource(bucket_name=self.bucket, object_name="known"))
        sources = [ComposeSource(bucket_name=self.bucket, object_name=key) for key in ("known", "unknown")]
        own.compose_object(**kind, object_name="both", sources=sources)
        self.assertEqual(own.stat_object(**kind, object_name="both").size, 2 * len(body))
        tags = Tags.new_object_tags()
        tags["a"] = "b"
        own.set_object_tags(**kind, object_name="copy", tags=tags)
        self.assertEqual(dict(own.get_object_tags(**kind, object_name="copy")), {"a": "b"})
        listed = [o.object_name for o in own.list_objects(**kind, include_version=True)]
        self.assertEqual(listed, ["both", "copy", "known", "unknown"])
        gone = [DeleteObject(name=key) for key in listed]
        self.assertEqual(list(own.remove_objects(**kind, delete_object_list=gone)), [])

    def test_fsspec_s3fs(self):
        s3fs = self.imported("s3fs")
        fs = s3fs.S3FileSystem(key=ACCESS_KEY, secret=SECRET_KEY, endpoint_url=ENDPOINT, skip_instance_cache=True)
        tree = self.tree("tree")
        fs.put(tree, f"{self.bucket}/tree", recursive=True)
        back = os.path.join(self.directory, "back")
        fs.get(f"{self.bucket}/tree", back, recursive=True)
        run("diff", "-r", tree, back)
        body = data(11 * MIB)
        with fs.open(f"{self.bucket}/file", "wb", block_size=5 * MIB) as file:
            file.write(body)
        with fs.open(f"{self.bucket}/file", "ab") as file:
            file.write(b"end")
        self.assertEqual(fs.cat(f"{self.bucket}/file"), body + b"end")
        fs.put_tags(f"{self.bucket}/file", {"k": "v"})
        self.assertEqual(fs.get_tags(f"{self.bucket}/file"), {"k": "v"})
        fs.mv(f"{self.bucket}/file", f"{self.bucket}/moved")
        fs.rm(f"{self.bucket}/tree", recursive=True)
        fs.invalidate_cache()
        self.assertEqual(fs.ls(self.bucket, detail=False), [f"{self.bucket}/moved"])

    def test_pyarrow(self):
        pa, fs, parquet, dataset = self.imported("pyarrow", "pyarrow.fs", "pyarrow.parquet", "pyarrow.dataset")
        s3 = fs.S3FileSystem(
            access_key=ACCESS_KEY, secret_key=SECRET_KEY, endpoint_override=ENDPOINT, region="us-east-1"
        )
        table = pa.table({"n": list(range(100_000)), "part": [i % 3 for i in range(100_000)]})
        parquet.write_table(table, f"{self.bucket}/one.parquet", filesystem=s3)
        self.assertEqual(parquet.read_table(f"{self.bucket}/one.parquet", filesystem=s3), table)
        dataset.write_dataset(
            table, f"{self.bucket}/set", format="parquet", filesystem=s3, partitioning=["part"],
            partitioning_flavor="hive",
        )
        rows = dataset.dataset(f"{self.bucket}/set", filesystem=s3, partitioning="hive").count_rows()
        self.assertEqual(rows, 100_000)
        body = data(20 * MIB)
        with s3.open_output_stream(f"{self.bucket}/stream") as file:
            file.write(body)
        with s3.open_input_stream(f"{self.bucket}/stream") as file:
            self.assertEqual(file.read(), body)
        s3.delete_dir(f"{self.bucket}/set")

    def storage(self):
        return {
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
            "aws_endpoint": ENDPOINT,
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
        }

    def test_delta_rs(self):
        deltalake, pa = self.imported("deltalake", "pyarrow")
        where = f"s3://{self.bucket}/table"
        options = {**self.storage(), "aws_conditional_put": "etag"}
        rows = lambda i: pa.table({"writer": [i] * 3, "n": [0, 1, 2]})
        deltalake.write_deltalake(where, rows(0), storage_options=options)

        def append(i):
            for _ in range(3):
                deltalake.write_deltalake(where, rows(i), mode="append", storage_options=options)

        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            list(pool.map(append, (1, 2, 3)))
        table = deltalake.DeltaTable(where, storage_options=options)
        self.assertEqual(table.version(), 9)
        self.assertEqual(len(pa.table(table.to_pyarrow_table())), 30)

    def test_obstore(self):
        obstore, stores = self.imported("obstore", "obstore.store")
        store = stores.S3Store(
            self.bucket,
            config={**self.storage(), "aws_conditional_put": "etag"},
            client_options={"allow_http": True},
        )
        body = data(12 * MIB)
        obstore.put(store, "large", body, chunk_size=5 * MIB, use_multipart=True)
        self.assertEqual(bytes(obstore.get(store, "large").bytes()), body)
        self.assertEqual(bytes(obstore.get_range(store, "large", start=5, end=15)), body[5:15])
        obstore.put(store, "once", b"first", mode="create")
        with self.assertRaises(Exception) as caught:
            obstore.put(store, "once", b"second", mode="create")
        self.assertIn("AlreadyExists", type(caught.exception).__name__)
        obstore.copy(store, "once", "copy")
        obstore.rename(store, "copy", "renamed")
        listed = [o["path"] for page in obstore.list(store) for o in page]
        self.assertEqual(listed, ["large", "once", "renamed"])
        obstore.delete(store, listed)

    def test_s3fs_fuse(self):
        s3fs = self.needs("s3fs")
        if not os.path.exists("/dev/fuse"):
            self.skipTest("there is no /dev/fuse here")
        secret, mount = os.path.join(self.directory, "passwd"), os.path.join(self.directory, "mount")
        with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(f"{ACCESS_KEY}:{SECRET_KEY}")
        os.mkdir(mount)
        options = f"passwd_file={secret},url={ENDPOINT},use_path_request_style,use_cache="
        done = subprocess.run([s3fs, self.bucket, mount, "-o", options], capture_output=True, text=True)
        if done.returncode:
            self.skipTest(f"file systems cannot be mounted here: {done.stderr.strip()}")
        try:
            tree = self.tree("tree")
            run("cp", "-r", tree, mount)
            run("diff", "-r", tree, os.path.join(mount, "tree"))
            with open(os.path.join(mount, "tree", "dir1", "file 1"), "ab") as file:
                file.write(b"more")
            os.rename(os.path.join(mount, "tree", "dir1"), os.path.join(mount, "moved"))
            with open(os.path.join(mount, "moved", "file 1"), "rb") as file:
                self.assertEqual(file.read(), data(1, 1) + b"more")
            shutil.rmtree(os.path.join(mount, "tree"))
        finally:
            run("umount", mount)
        self.assertIn("moved/file 1", [o["Key"] for o in self.s3.list_objects_v2(Bucket=self.bucket)["Contents"]])


if __name__ == "__main__":
    outcome = unittest.main(exit=False).result
    for test, why in outcome.skipped:
        print(f"SKIPPED: {test.id()}: {why}", file=sys.stderr)
    sys.exit(not outcome.wasSuccessful())
