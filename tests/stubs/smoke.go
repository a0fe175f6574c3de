// Asks the processor at the address given for an answer and for one that is refused, through generated stubs, and reads
// both event by event. Prints the answer's text. Exits 1 if a rule of the contract was broken.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	inferencev1 "ringline.dev/gen/inference/v1"
	typesv1 "ringline.dev/gen/types/v1"
)

const maxTokens = 16

func main() {
	log.SetFlags(0)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	connection, err := grpc.DialContext(ctx, os.Args[1], grpc.WithInsecure(), grpc.WithBlock())
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	client := inferencev1.NewInferenceServiceClient(connection)
	fmt.Print(answer(ctx, client))
	refused(ctx, client)
}

func request(temperature float32) *inferencev1.GenerateRequest {
	return &inferencev1.GenerateRequest{
		Prompt:   &inferencev1.GenerateRequest_Text{Text: "Once upon a time"},
		Sampling: &inferencev1.SamplingParams{Temperature: proto.Float32(temperature)},
		Stopping: &inferencev1.StoppingParams{MaxTokens: proto.Uint32(maxTokens), IgnoreEos: proto.Bool(true)},
	}
}

// answer reads a request to its end and returns its text.
func answer(ctx context.Context, client inferencev1.InferenceServiceClient) string {
	stream, err := client.Generate(ctx, request(0))
	if err != nil {
		log.Fatal(err)
	}
	text, tokens, seen := "", 0, ""
	for {
		response, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		switch event := response.Event.(type) {
		case *inferencev1.GenerateResponse_Admitted:
			seen += "admitted "
		case *inferencev1.GenerateResponse_Started:
			seen += "started "
		case *inferencev1.GenerateResponse_Delta:
			if int(event.Delta.FirstPosition) != tokens {
				log.Fatalf("a delta begins at %d, after %d tokens", event.Delta.FirstPosition, tokens)
			}
			text += event.Delta.Text
			tokens += len(event.Delta.TokenIds)
		case *inferencev1.GenerateResponse_ChoiceFinished:
			if reason := event.ChoiceFinished.FinishReason; reason != typesv1.FinishReason_FINISH_REASON_LENGTH {
				log.Fatalf("it ended with %v", reason)
			}
			seen += "choice_finished "
		case *inferencev1.GenerateResponse_RequestFinished:
			if counted := event.RequestFinished.Usage.CompletionTokens; int(counted) != tokens || tokens != maxTokens {
				log.Fatalf("%d tokens, of which %d are counted", tokens, counted)
			}
			seen += "request_finished"
		}
	}
	if seen != "admitted started choice_finished request_finished" {
		log.Fatalf("beside deltas there came: %s", seen)
	}
	return text
}

// refused has a field that is out of range: Refused is all that comes, and the call ends with the same status.
func refused(ctx context.Context, client inferencev1.InferenceServiceClient) {
	stream, err := client.Generate(ctx, request(-1))
	if err != nil {
		log.Fatal(err)
	}
	response, err := stream.Recv()
	if err != nil {
		log.Fatal(err)
	}
	told := response.GetRefused().GetStatus()
	_, err = stream.Recv()
	if end := status.Convert(err); end.Code() != codes.InvalidArgument || told.GetMessage() != end.Message() {
		log.Fatalf("it was refused with %v, and ended with %v", told, err)
	}
}
